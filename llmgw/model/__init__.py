"""What things are: frozen records and enums, typed once in pydantic. No behaviour beyond a derived property."""
