from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from din.cli import sources
from din.cli.root import cli
from tests.client.fake_gateway import FakeGateway, furnish

Run = Callable[..., Result]


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    made = FakeGateway()
    furnish(made)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh home, no settings, no gateway but the one that a test names."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "DIN_GATEWAY", "DIN_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sources, "SYSTEM_FILE", tmp_path / "etc-config.yaml")
    return tmp_path


@pytest.fixture
def run(fake: FakeGateway, home: Path) -> Run:
    """Run `din` against the fake; the result has exit_code, stdout and stderr."""

    def call(*words: str, **options: Any) -> Result:
        options.setdefault("env", {"DIN_GATEWAY": fake.url})
        return CliRunner().invoke(cli, list(words), prog_name="din", **options)

    return call
