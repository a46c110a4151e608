"""The application: pages as HTML, their views as an API with an OpenAPI description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from importlib import metadata
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from pages.layout import ASSETS, Notice, Screen, asset, asset_address, asset_packed, rendered
from transport.process.printable import listed

from .access_tokens import LOCAL, Viewer
from .page_answers import PackedAnswer, PageAnswers, answered
from .page_shape import EVERYBODY, Page, Role, View
from .store_reading import PageState
from .view_panel import FILE_KINDS, answer_model, links

_API: Final = "/api/v1"
_STATE: Final = Annotated[PageState, Query()]
_HTML: Final = "text/html; charset=utf-8"


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str


class SeriesAnswer(BaseModel):
    """A series and its newest window, unix seconds."""

    name: str
    newest_window_s: float
    window_s: float


class StoreAnswer(BaseModel):
    """How the store stands: loading, empty, error, stale or well; a change has a generation."""

    generation: str
    state: str
    detail: str
    simulated: bool
    series: list[SeriesAnswer]


class PageAnswer(BaseModel):
    """A page and its views, by name."""

    name: str
    title: str
    question: str
    views: dict[str, str]


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": Problem, "description": "no token that is in force"},
    403: {"model": Problem, "description": "not for this role"},
    422: {"model": Problem, "description": "a parameter is unknown or out of its range"},
    429: {"model": Problem, "description": "too many requests"},
    503: {"model": Problem, "description": "the store cannot be read now"},
}

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
    """Refuse an address with unknown parameters. Raises HTTPException, which names them."""
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


def application(answers: PageAnswers) -> FastAPI:
    """Make the application of a store; `Guard` belongs around it."""
    app = FastAPI(
        title="Pointillist",
        version=metadata.version("pointillist"),
        description="Released numbers with their errors. Reading costs no privacy budget.",
        openapi_url=f"{_API}/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        dependencies=[Depends(refuse_unknown)],
    )
    _add_frame(app, answers)
    for page in answers.pages:
        _add_page(app, answers, page)
        for view in page.views:
            for kind in FILE_KINDS:
                _add_view(app, answers, page, view, kind)
    _add_errors(app, answers)
    return app


def _add_frame(app: FastAPI, answers: PageAnswers) -> None:
    @app.get("/", include_in_schema=False)
    def first(request: Request) -> Response:
        role = admitted(request).role
        page = next(page for page in answers.pages if role in page.roles)
        return RedirectResponse(f"/{page.name}", 302)

    @app.get("/static/{tag}/{name}", include_in_schema=False)
    def static(request: Request, tag: str, name: str) -> Response:
        if name not in ASSETS or asset_address(name) != f"/static/{tag}/{name}":
            raise HTTPException(404, "There is no such file.")
        packed = PackedAnswer(asset(name), asset_packed(name), f'"{tag}"')
        kept = "public, max-age=31536000, immutable"
        return answered(request, packed, ASSETS[name], kept)

    @app.get(f"{_API}/store", summary="How the store stands", responses=PROBLEMS)
    def store(request: Request) -> StoreAnswer:
        standing = answers.watch.standing()
        visible = answers.visible(standing, admitted(request))
        answer = StoreAnswer(
            generation=standing.generation,
            state=standing.state.value,
            detail=standing.detail,
            simulated=standing.simulated,
            series=[
                SeriesAnswer(name=one.name, newest_window_s=one.start_s, window_s=one.window_s)
                for one in standing.series
                if visible is None or one.name in visible
            ],
        )
        packed = PackedAnswer.of(answer.model_dump_json().encode())
        return answered(request, packed, "application/json")  # type: ignore[return-value]

    @app.get(f"{_API}/pages", summary="Pages and their views", responses=PROBLEMS)
    def pages(request: Request) -> list[PageAnswer]:
        role = admitted(request).role
        return [
            PageAnswer(
                name=page.name, title=page.title, question=page.question,
                views={view.name: view.title for view in page.views},
            )
            for page in answers.pages
            if role in page.roles
        ]  # fmt: skip


def _add_page(app: FastAPI, answers: PageAnswers, page: Page) -> None:
    async def serve(request: Request, state: _STATE) -> Response:  # type: ignore[valid-type]
        viewer = admitted(request, page.roles, f"{page.title} is")
        # What is drawn already never waits behind what is not.
        drawn = answers.ready_page(page, state, viewer)
        if drawn is None:
            drawn = await run_in_threadpool(answers.page, page, state, viewer)
        return answered(request, drawn, _HTML)

    app.get(f"/{page.name}", include_in_schema=False)(serve)


def _add_view(app: FastAPI, answers: PageAnswers, page: Page, view: View, kind: str) -> None:
    ending, media_type, _ = FILE_KINDS[kind]

    def serve(request: Request, state: _STATE) -> Response:  # type: ignore[valid-type]
        viewer = admitted(request, page.roles, f"{page.title} is")
        answer = answered(request, answers.file(page, view, state, viewer, kind), media_type)
        if kind != "json":
            name = f"{page.name}-{view.name}{ending}"
            answer.headers["content-disposition"] = f'attachment; filename="{name}"'
        return answer

    responses, described = dict(PROBLEMS), dict[str, Any]()
    if kind == "json":
        described["response_model"] = answer_model(page, view)
    else:
        described["response_class"] = Response
        responses[200] = {"content": {media_type: {}}}
    app.get(
        f"{_API}/pages/{page.name}/{view.name}{ending}",
        summary=f"{page.title}: {view.title}" + ("" if kind == "json" else f", as {kind}"),
        description=page.question,
        operation_id=f"{page.name}_{view.name}_{kind}".replace("-", "_"),
        responses=responses,
        **described,
    )(serve)


def admitted(
    request: Request, roles: frozenset[Role] = EVERYBODY, what: str = "These rows are"
) -> Viewer:
    """Give who asks. Raises HTTPException where that role may not."""
    viewer: Viewer = request.state.viewer
    if viewer.role not in roles:
        raise HTTPException(403, f"{what} not for the role {viewer.role}.")
    return viewer


_TITLES: Final = {403: "Not for this role", 404: "No such page", 422: "Not understood"}


def _add_errors(app: FastAPI, answers: PageAnswers) -> None:
    """Say errors as JSON below the API and as a page elsewhere; no value is repeated."""

    def told(request: Request, status: int, said: str) -> Response:
        headers = {"cache-control": "no-store"}
        if request.url.path.startswith(f"{_API}/"):
            return JSONResponse({"detail": said}, status, headers)
        viewer: Viewer = getattr(request.state, "viewer", LOCAL)
        screen = Screen(
            title=_TITLES.get(status, "Something is wrong"),
            question=said,
            links=links(answers.pages, viewer, PageState(), None),
            notices=[Notice("error", f"Answered with {status}.")],
        )
        return Response(rendered(screen), status, headers, _HTML)

    def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101  (as it is registered)
        return told(request, 422, wrong_values(request, error.errors()))

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  (as it is registered)
        said = str(error.detail)
        if error.status_code == HTTPStatus.NOT_FOUND and said == HTTPStatus.NOT_FOUND.phrase:
            said = f"There is nothing at this address; {_API}/pages lists pages and views."
        return told(request, error.status_code, said)

    async def broken(request: Request, _: Exception) -> Response:
        said = "Something here is broken; what it is stands in the server's log."
        return await run_in_threadpool(told, request, 500, said)

    handlers: dict[type[Exception], Callable[..., Response | Awaitable[Response]]] = {
        RequestValidationError: wrong,
        HTTPException: refused,
        Exception: broken,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
