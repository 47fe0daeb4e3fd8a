"""`python -m llmgw`."""

from llmgw.cli.main import main

main()
