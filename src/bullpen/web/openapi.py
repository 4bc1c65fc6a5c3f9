"""The OpenAPI 3.1 document of the HTTP API, made from the operations and their classes."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from bullpen import __version__
from bullpen.tasks.model.options import QUEUE_NAME
from bullpen.web.api import OPERATIONS, Operation
from bullpen.web.api_types import Problem

BASE = "/api/v1"

ERRORS = {
    "400": "The address or the body is wrong.",
    "401": "The token is missing or not known.",
    "403": "The token lacks the scope, or the dashboard is read-only.",
    "404": "There is no such function, task or schedule.",
    "409": "The change is not possible now.",
    "413": "The body or the payload is too large.",
    "414": "The address is longer than 4,096 characters.",
    "415": "The body is not JSON.",
    "421": "The host name is not known here.",
    "503": "The store gives no answer, or too many callers wait.",
}


CREATES = {"enqueue": "A new task is stored.", "emit": "The event is stored."}


@cache
def openapi_document(root: str = "") -> dict[str, Any]:
    """`root`: the path where the dashboard is mounted."""
    kinds = [Problem, *(kind for one in OPERATIONS for kind in (one.answer, one.query, one.body) if kind is not None)]
    unique = list(dict.fromkeys(kinds))
    _, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    schemas = _in_seconds(components)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        path = operation.path.replace("{id:path}", "{id}")
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, schemas)
    for operation in OPERATIONS:
        schemas.pop(operation.query.__name__, None)  # they are parameters
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bullpen",
            "version": __version__,
            "description": "Enqueue tasks, look at them and operate queues. Durations are seconds.",
        },
        "servers": [{"url": f"{root}{BASE}"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`bullpen tokens create`"}
            },
            "responses": {
                code: {
                    "description": words,
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for code, words in ERRORS.items()
            },
            "schemas": dict(sorted(schemas.items())),
        },
    }


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    body = operation.body
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{operation.answer.__name__}"}}}
    answers: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    if operation.name in CREATES:
        answers["201"] = {"description": CREATES[operation.name], "content": content}
    parameters = _parameters(schemas[operation.query.__name__])
    if "{id" in operation.path:
        text: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 512}
        if operation.path.startswith("/queues/"):
            text = {"type": "string", "pattern": f"^{QUEUE_NAME.pattern}$"}
        parameters.insert(0, {"name": "id", "in": "path", "required": True, "schema": text})
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs a token with the scope {' or '.join(operation.scopes)}.",
        "security": [{"token": list(operation.scopes)}],
        "parameters": parameters,
        "responses": answers | {code: {"$ref": f"#/components/responses/{code}"} for code in ERRORS},
    }
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        needs_body = bool(schemas[body.__name__].get("required"))
        described["requestBody"] = {"required": needs_body, "content": {"application/json": {"schema": schema}}}
    return described


def _parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, value in schema.get("properties", {}).items():
        one = value["anyOf"][0] if "anyOf" in value else value  # or null: left out
        described = {key: item for key, item in one.items() if key != "description"}
        if one is value and "default" in value:
            described["default"] = value["default"]
        words = one.get("description", "only tasks with this status")
        found.append({"name": name, "in": "query", "required": False, "description": words, "schema": described})
    return found


def _in_seconds(schema: Any) -> Any:
    """Durations are numbers in the documents of the API."""
    if isinstance(schema, dict):
        if schema.get("format") == "duration":
            return {"type": "number", "description": "seconds"}
        return {key: _in_seconds(value) for key, value in schema.items()}
    return [_in_seconds(one) for one in schema] if isinstance(schema, list) else schema
