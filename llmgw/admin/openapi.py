"""openapi.json, made from the endpoint table and the pydantic types."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from llmgw.admin.endpoints import ENDPOINTS

BASE = "/api/v1"


def document(version: str) -> dict[str, Any]:
    modes = [(endpoint.gives, "serialization") for endpoint in ENDPOINTS]
    modes += [(endpoint.takes, "validation") for endpoint in ENDPOINTS if endpoint.takes is not None]
    refs, schemas = models_json_schema(modes, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        path = BASE + re.sub(r"\{(\w+):path\}", r"{\1}", endpoint.path)
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", path)
        ]
        parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in endpoint.query]
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "parameters": parameters,
            "responses": {
                "200": {"description": "done", "content": _json(refs[endpoint.gives, "serialization"])},
                "default": {"description": "what failed, why, what to do", "content": _json(_ERROR)},
            },
        }
        if endpoint.takes is not None:
            operation["requestBody"] = {"required": True, "content": _json(refs[endpoint.takes, "validation"])}
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "llmgw admin API", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("code", "message", "fix")}
            | {"exit_status": {"type": "integer"}},
        }
    },
}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
