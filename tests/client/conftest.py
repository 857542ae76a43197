from collections.abc import Iterator

import pytest

from tests.client.fake_gateway import FakeGateway, furnish


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    made = FakeGateway()
    furnish(made)
    yield made
    made.close()
