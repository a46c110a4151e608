"""What is wrong with the parameters of an address: which is meant, and what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args, get_origin

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException

from transport.process.printable import listed

_EXPECTED: Final = {
    "missing": "one of {expected}, got none",
    "int": "a whole number",
    "bool": "true or false",
    "date": "a day such as 2026-11-27",
    "datetime": "a moment such as 2026-11-27T08:00:00Z",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "a name of letters and digits",
    "literal_error": "one of {expected}",
    "enum": "one of {expected}",
}


def refuse_unknown(request: Request) -> None:
    """Refuse an address with a parameter that its page or view does not know.

    Raises      HTTPException, which names it and those that are known
    """
    known = _fields(request)
    strange = sorted(set(request.query_params) - known.keys())
    if strange:
        told = f"known are {', '.join(known)}" if known else "this address knows none"
        raise HTTPException(422, f"no such parameter: {listed(strange)}; {told}")


def wrong_values(request: Request, errors: Sequence[Any]) -> str:
    """Say what is expected of parameters, from pydantic's errors; no value is repeated."""
    known = _fields(request)
    return "; ".join(_said(error, known) for error in errors)


def _said(error: Mapping[str, Any], known: Mapping[str, FieldInfo]) -> str:
    name = str(error["loc"][1]) if len(error["loc"]) > 1 else "the address"
    kind, context = str(error["type"]), error.get("ctx", {})
    field = known.get(name)
    choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
    if kind == "missing" and field is not None and get_origin(field.annotation) is Literal:
        choices = ", ".join(map(str, get_args(field.annotation)))
    words = _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0]) or "another value"
    expected = words.format_map({**context, "expected": choices or "its values"})
    meaning = f" ({field.description})" if field is not None and field.description else ""
    return f"{name}: expected {expected}{meaning}"


def _fields(request: Request) -> dict[str, FieldInfo]:
    route = request.scope.get("route")
    found: dict[str, FieldInfo] = {}
    for field in route.dependant.query_params if isinstance(route, APIRoute) else ():
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            found |= model.model_fields
        else:
            found[field.alias] = field.field_info
    return found
