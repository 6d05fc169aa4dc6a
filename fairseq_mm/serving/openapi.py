"""OpenAPI document of the JSON API, with the systems that are loaded."""

from collections.abc import Mapping
from typing import Any

from fairseq_mm import __version__
from fairseq_mm.serving.requests import MAX_ID_LENGTH
from fairseq_mm.serving.systems import KINDS

_TEXT = {"type": "string"}
_FILE = {"type": "string", "format": "binary"}
_JSON_TYPES: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
# fields of a request by kind: the fields of a form, and those that must be there
_INPUTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "captions": ({"image": _FILE}, ["image"]),
    "albums": (
        {
            "images": {
                "type": "array",
                "items": _FILE,
                "minItems": 5,
                "maxItems": 5,
                "description": "Five images; an empty file is a missing image.",
            }
        },
        ["images"],
    ),
    "prompts": (
        {"prompt": {"type": "string", "description": "Prompt; language models read none."}},
        [],
    ),
    "summaries": (
        {
            "video": {**_FILE, "description": "Video, or features [frames, D] as .npy."},
            "transcript": {
                "type": "string",
                "description": "Text; in a form also a file .txt, .srt or .vtt.",
            },
        },
        [],
    ),
    "search": (
        {"query": {"type": "string", "description": "Sentence or word."}, "image": _FILE},
        [],
    ),
}
_RECORDS: dict[str, dict[str, Any]] = {
    "captions": {},
    "albums": {
        "item": {"type": "integer"},
        "images": {"type": "array", "items": _TEXT},
        "sentences": {"type": "array", "items": _TEXT},
        "words": {"type": "integer"},
    },
    "prompts": {
        "prompt": _TEXT,
        "prompt_tokens": _TEXT,
        "unknown_words": {"type": "array", "items": _TEXT},
        "prompt_words_cut": {"type": "integer"},
        "tokens": _TEXT,
        "words": {"type": "integer"},
    },
    "summaries": {
        "transcript_tokens": {"type": "integer"},
        "transcript_tokens_cut": {"type": "integer"},
        "frames": {"type": "integer"},
        "frames_cut": {"type": "boolean"},
    },
}
_ERRORS = {
    "400": "The request is malformed.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from a page of another site.",
    "404": "There is no such system.",
    "408": "The request was not complete in time.",
    "413": "The request, or a text of it, is too large.",
    "415": "The request, or a file of it, is of another type.",
    "422": "An input cannot be read, or an option does not fit.",
    "503": "Too many requests are waiting, or the server is stopping; see Retry-After.",
    "504": "The text took too long.",
}


def build_document(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document.

    Args:
        about: Content of the answer of ``/api/systems``: ``version``, ``limits`` and ``systems``.
    """
    paths: dict[str, Any] = {
        "/health": {"get": _reading("health", "State of the server", "Health", secured=False)},
        "/api/systems": {"get": _reading("systems", "Loaded systems and limits", "Systems")},
    }
    schemas = dict(_COMMON)
    for name, kind in KINDS.items():
        systems = [system for system in about["systems"] if system["kind"] == name]
        if systems:
            record = f"{name.capitalize()}Record"
            schemas[record] = _record_schema(name)
            paths[kind.path] = {"post": _operation(name, kind.purpose, systems, record)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fairseq_mm", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # an empty requirement: a server on the own machine needs no token
        "security": [{}, {"token": []}],
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(name: str, media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": _reference(name)}}


def _reading(name: str, summary: str, schema: str, *, secured: bool = True) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": _content(schema)}},
    }
    return operation if secured else {**operation, "security": []}


def _operation(
    kind: str, purpose: str, systems: list[dict[str, Any]], record: str
) -> dict[str, Any]:
    inputs, required = _INPUTS[kind]
    options: dict[str, Any] = {"preset": {"enum": systems[0]["presets"]}}
    for name, value in systems[0]["options"].items():
        options[name] = {"type": _JSON_TYPES[type(value)], "default": value}
    if not systems[0]["presets"]:
        del options["preset"]
    if kind != "search":
        options["prefix"] = _TEXT
    properties = {
        **inputs,
        "system": {"enum": [system["name"] for system in systems]},
        "id": {"type": ["string", "integer"], "maxLength": MAX_ID_LENGTH},
        "index": {"type": "integer", "minimum": 0, "default": 0},
        "options": {"type": "object", "properties": options, "additionalProperties": False},
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    schema = {**schema, "required": required} if required else schema
    # the type of the parts that are no text: they are JSON
    encoding = {name: {"contentType": "application/json"} for name in ("index", "options")}
    content: dict[str, Any] = {"multipart/form-data": {"schema": schema, "encoding": encoding}}
    if kind not in ("captions", "albums"):
        files = ("image", "video")
        as_json = {name: value for name, value in properties.items() if name not in files}
        content["application/json"] = {"schema": {**schema, "properties": as_json}}
    events = (
        "Events `text` with {text}, the text so far; then one event `record` with the record, or "
        "`error` with {error}."
    )
    about = "The record, as the commands write it; events if Accept asks for them."
    as_events = {"text/event-stream": {"schema": {"type": "string", "description": events}}}
    answers: dict[str, Any] = {
        "200": {"description": about, "content": {**_content(record), **as_events}}
    }
    for status, description in _ERRORS.items():
        answers[status] = {"description": description, "content": _content("Error")}
    return {
        "operationId": kind,
        "summary": purpose,
        "requestBody": {"required": True, "content": content},
        "responses": answers,
    }


def _record_schema(kind: str) -> dict[str, Any]:
    if kind == "search":
        return _SEARCH_RECORD
    hypothesis = {"hypothesis": _TEXT, "score": {"type": "number"}}
    return {
        "type": "object",
        "properties": {
            "id": {"type": ["string", "integer"]},
            **hypothesis,
            "hypotheses": {
                "type": "array",
                "items": {"type": "object", "properties": hypothesis},
                "description": "All hypotheses, if `nbest` is above 1.",
            },
            "system": _TEXT,
            **_RECORDS[kind],
            "checkpoint": {
                "type": ["string", "array"],
                "items": _TEXT,
                "description": "SHA-256 of the checkpoint; of each checkpoint of an ensemble.",
            },
            "options": {"type": "object"},
            "extractor": {"type": "object"},
        },
        "required": ["id", "hypothesis", "score", "system", "checkpoint", "options"],
    }


_SEARCH_RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "integer"]},
        "query": _TEXT,
        "system": _TEXT,
        "images": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "Path of the image in the folder."},
                    "score": {"type": "number", "minimum": -1.01, "maximum": 1.01},
                    "rank": {"type": "integer", "minimum": 1},
                    "thumbnail": {"type": "string", "description": "JPEG as a data URI."},
                },
                "required": ["id", "score", "rank"],
            },
        },
        "unknown_words": {"type": "array", "items": _TEXT},
        "stale": {"type": "integer", "description": "Images left out because they have changed."},
    },
    "required": ["id", "query", "system", "images", "unknown_words", "stale"],
}
_COMMON: dict[str, Any] = {
    "Error": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]},
    "Health": {
        "type": "object",
        "properties": {
            "status": {"enum": ["ok", "stopping"]},
            "requests": {"type": "integer", "description": "Requests that are being answered."},
        },
        "required": ["status", "requests"],
    },
    "Systems": {
        "type": "object",
        "properties": {
            "version": _TEXT,
            "limits": {"type": "object"},
            "systems": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["version", "limits", "systems"],
    },
}
