"""The API keeps to its description, whatever is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.schemas import BaseSchema

from tests.web_kit import fill
from web.guard import QueryRecord
from web.store_watch import StoreWatch
from web.web_server import WebSettings, guarded


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    store = fill(tmp_path_factory.mktemp("store"))
    settings_of_web = WebSettings(store, store.parent / "rollups", names=("testserver",))
    watch = StoreWatch(store, settings_of_web.rollups)
    served = guarded(settings_of_web, watch, QueryRecord(None))
    yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", served)
    watch.close()


schema = schemathesis.pytest.from_fixture("api")


@pytest.mark.release
@schema.parametrize()
@settings(
    max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_api_keeps_to_its_description(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate()
