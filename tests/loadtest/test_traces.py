"""Trace files: three formats, and the line of a mistake."""

from pathlib import Path

import numpy as np
import pytest

from loadtest import traces
from loadtest.errors import UsageError
from loadtest.traces import Arrival

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
)
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 7, "output_length": 5, "hash_ids": [1]}\n'
    '{"timestamp": 250, "input_length": 3, "output_length": 2, "hash_ids": []}\n'
)
SERVEGEN = (
    "client,window_start_s,rate_rps,cv,pattern,param1,param2\n"
    "a,0,2.0,1.5,Gamma,0.44,1.1\n"
    "b,600,1.0,2.2,Weibull,0.5,0.25\n"
)


def read(tmp_path: Path, kind: str, text: str) -> list[Arrival]:
    path = tmp_path / f"{kind}.txt"
    path.write_bytes(text.encode())
    return traces.read(path, kind, np.random.default_rng(1))


def test_azure(tmp_path: Path) -> None:
    first, second = read(tmp_path, "azure", AZURE)
    assert first == Arrival(0.0, 4808, 10)
    assert second.at == pytest.approx(0.052)
    assert (second.prompt_tokens, second.output_tokens) == (3180, 8)


def test_mooncake_is_put_in_order(tmp_path: Path) -> None:
    assert read(tmp_path, "mooncake", MOONCAKE) == [Arrival(0.0, 3, 2), Arrival(0.75, 7, 5)]


def test_servegen_windows_have_their_rates(tmp_path: Path) -> None:
    found = read(tmp_path, "servegen", SERVEGEN)
    counts = {client: sum(a.tenant == client for a in found) for client in "ab"}
    assert counts["a"] == pytest.approx(1200, rel=0.3)
    assert counts["b"] == pytest.approx(600, rel=0.5)
    assert all(a.prompt_tokens is None for a in found)
    assert [a.at for a in found] == sorted(a.at for a in found)


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        ("azure", AZURE + "yesterday,1,2\r\n", "line 4"),
        ("azure", AZURE + "2023-11-16 18:17:05.0,x,2\r\n", "line 4"),
        ("azure", AZURE + "2023-11-16 18:17:05.0,-1,2\r\n", "line 4"),
        ("azure", "TIMESTAMP,ContextTokens\r\n", "line 1: no column GeneratedTokens"),
        ("azure", AZURE.split("\r\n", maxsplit=1)[0] + "\r\n", "no arrivals"),
        ("mooncake", MOONCAKE + "{\n", "line 3"),
        ("mooncake", MOONCAKE + '{"timestamp": 1}\n', "line 3"),
        ("servegen", SERVEGEN + "c,1200,fast,1,Gamma,1,1\n", "line 4"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, kind: str, text: str, where: str) -> None:
    with pytest.raises(UsageError, match=where) as raised:
        read(tmp_path, kind, text)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_an_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        traces.read(tmp_path / "none.csv", "azure", np.random.default_rng(1))
    with pytest.raises(UsageError, match="one of azure, mooncake, servegen"):
        traces.read(tmp_path / "none.csv", "csv", np.random.default_rng(1))
