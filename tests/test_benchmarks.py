"""The benchmark runner, its rows and its table; the cases themselves run in continuous testing."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as runner
from benchmarks import (
    case_ifm_digits,
    case_ifm_tags,
    case_pcd,
    case_sampling,
    case_scaling,
    children,
    rows,
    table,
)


def make_row(method="gibbs", size="full", device="cpu", **more):
    run_s = {"min": 0.1, "median": 0.2, "max": 0.35}
    options = {"compile_s": 1.25, "run_s": run_s, "quality": {"error": 0.012345678, "groups": 7}}
    return rows.row("demo", method, size, device=device, **options, **more)


def test_row_holds_every_field_of_a_measurement():
    row = make_row(experiment=1)
    assert list(row)[:5] == ["case", "method", "size", "experiment", "device"]
    assert table.SHARED | {"experiment"} == set(row)
    assert set(row["versions"]) == {"python", "jaxmrf", "jax", "numpyro"}
    assert row["versions"]["jax"] == jax.__version__


def test_row_summarises_the_seconds_of_every_run():
    row = rows.row("demo", "peer", "small", compile_s=None, run_s=[3.0, 1.0, 8.0], quality={})
    assert row["run_s"] == {"min": 1.0, "median": 3.0, "max": 8.0}
    assert row["device"] == jax.devices()[0].device_kind


def test_written_rows_are_read_back_to_five_digits(tmp_path):
    row = make_row()
    row["quality"] |= {"array": jnp.float32(1.5), "count": np.int64(3), "is_exact": np.bool_(True)}
    (stored,) = rows.read(rows.write([row], tmp_path / "new"))
    assert stored["quality"] == {
        "error": 0.012346,
        "groups": 7,
        "array": 1.5,
        "count": 3,
        "is_exact": True,
    }
    assert stored["versions"] == row["versions"]


def test_new_rows_replace_old_ones_of_their_size_and_device_only(tmp_path):
    old = [make_row("a"), make_row("b", device="gpu"), make_row("c", size="small")]
    rows.write(old, tmp_path)
    path = rows.write([make_row("d")], tmp_path)
    assert [row["method"] for row in rows.read(path)] == ["b", "c", "d"]


def test_time_jitted_keeps_the_result_and_times_every_call():
    timing = rows.time_jitted(lambda x: x @ x, jnp.full((8, 8), 0.5), repeats=3)
    np.testing.assert_array_equal(timing.result, np.full((8, 8), 2.0))
    assert 0 < timing.run_s["min"] <= timing.run_s["median"] <= timing.run_s["max"]
    assert timing.compile_s > 0
    assert timing.peak_mb >= 2 * 8 * 8 * 4 / 1e6  # at least the argument and the result


def test_time_calls_puts_the_first_call_apart(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0, 30.0, 33.0])
    monkeypatch.setattr(rows, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    timing = rows.time_calls(lambda: "done", repeats=3)
    assert timing.result == "done"
    assert timing.run_s == {"min": 1.0, "median": 2.0, "max": 3.0}
    assert timing.compile_s == 3.0
    assert timing.peak_mb > 1.0


def test_table_shows_setting_spread_and_quality():
    lines = table.render([make_row(experiment=2)]).splitlines()
    assert lines[2] == (
        "| demo, experiment 2 | gibbs | cpu | 0.2 (0.1 to 0.35) | 1.25 | error 0.012346, groups 7 |"
    )
    assert len({line.count("|") for line in lines}) == 1


def test_table_is_put_between_the_markers_from_full_rows_only(tmp_path):
    rows.write([make_row("a")], tmp_path)
    rows.write([make_row("b", size="small")], tmp_path)
    text = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    new = table.updated(text, tmp_path)
    assert new.startswith(f"before\n{table.BEGIN}\n| case |") and new.endswith("\nafter\n")
    assert "| a |" in new and "| b |" not in new and "old" not in new
    assert table.updated(new, tmp_path) == new


def test_text_without_markers_is_left_alone(tmp_path):
    assert table.updated("no table", tmp_path) == "no table"


def test_text_with_one_marker_raises(tmp_path):
    with pytest.raises(ValueError, match="expected '<!-- results:end -->' after .* got none; add"):
        table.updated(table.BEGIN, tmp_path)


@pytest.fixture
def demo_case(monkeypatch):
    """A case named demo that notes the sizes and folders it is run with."""
    calls = []

    def run(size, out):
        calls.append((size, out))
        return [make_row(size=size)]

    monkeypatch.setattr(runner, "CASES", ["demo"])
    monkeypatch.setattr(runner, "import_module", lambda name: SimpleNamespace(run=run))
    return calls


def test_runner_writes_the_rows_of_a_case_into_the_folder(demo_case, tmp_path, capsys):
    runner.main(["--only", "demo", "--size", "small", "--out", str(tmp_path / "out")])
    assert demo_case == [("small", tmp_path / "out")]
    (line,) = (tmp_path / "out" / "demo.jsonl").read_text().splitlines()
    assert json.loads(line)["size"] == "small"
    assert "| demo | gibbs |" in capsys.readouterr().out


def test_runner_keeps_small_rows_away_from_the_committed_results(demo_case, monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(runner.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    runner.main(["--size", "small"])
    runner.main([])
    assert [size for size, _ in demo_case] == ["small", "full"]
    assert demo_case[0][1] == tmp_path / "jaxmrf-benchmarks-"
    assert demo_case[1][1] == tmp_path / "results"


def test_runner_passes_over_a_case_without_data(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(runner, "CASES", ["demo"])
    monkeypatch.setattr(
        runner, "import_module", lambda name: SimpleNamespace(run=lambda size, out: [])
    )
    runner.main(["--only", "demo", "--size", "small", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
    assert "rows in" not in capsys.readouterr().out


@pytest.mark.parametrize("case", [case_ifm_digits, case_ifm_tags])
def test_case_without_its_data_folder_says_so(case, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAXMRF_DATA", str(tmp_path / "absent"))
    assert case.run("small", tmp_path) == []
    assert f"{case.CASE}: skipped, there is no folder of data sets" in capsys.readouterr().out


def test_runner_refuses_an_unknown_case(demo_case, capsys):
    with pytest.raises(SystemExit):
        runner.main(["--only", "other"])
    assert "invalid choice: 'other'" in capsys.readouterr().err


def test_form_for_an_accelerator_needs_one(demo_case, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(runner.jax, "default_backend", lambda: "cpu")
    with pytest.raises(SystemExit):
        runner.main(["--gpu", "--out", str(tmp_path)])
    assert "gpu needs an accelerator" in capsys.readouterr().err
    assert demo_case == []


def test_form_for_an_accelerator_is_run_where_a_case_has_it(
    demo_case, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(runner.jax, "default_backend", lambda: "gpu")
    runner.main(["--gpu", "--out", str(tmp_path)])
    assert "demo: skipped, it has no form for an accelerator" in capsys.readouterr().out
    module = runner.import_module("demo")
    module.SIZES = {"gpu": None}
    monkeypatch.setattr(runner, "import_module", lambda name: module)
    runner.main(["--gpu", "--out", str(tmp_path)])
    assert demo_case == [("gpu", tmp_path)]


def test_child_process_hands_back_its_rows(monkeypatch, capfd):
    children.serve({"count": lambda number: ({"i": i} for i in range(int(number)))}, ["count", "2"])
    assert capfd.readouterr().out == '{"i": 0}\n{"i": 1}\n'
    monkeypatch.setattr(
        children.subprocess, "run", lambda command, **_: SimpleNamespace(stdout='{"i": 3}\nnoise\n')
    )
    assert children.rows_of("any", "count") == [{"i": 3}]


@pytest.mark.slow
@pytest.mark.parametrize("case", [case_sampling, case_pcd, case_scaling])
def test_form_for_an_accelerator_runs_at_a_tiny_size(case, tmp_path):
    measured = case.run("tiny", tmp_path)
    assert {row["case"] for row in measured} == {case.CASE}
    assert any(row["method"].startswith(("jaxmrf", "pcd")) for row in measured)
    assert json.loads(rows.write(measured, tmp_path).read_text().splitlines()[0])["size"] == "tiny"
    assert all(row["quality"].get("max_z", 0) < 4.5 for row in measured)


@pytest.mark.slow
def test_chains_over_virtual_devices_are_those_of_one(tmp_path):
    measured = case_scaling.run("small", tmp_path)
    assert [row["num_devices"] for row in measured] == [1, 2, 4, 8]
    assert all(row["quality"]["is_equal"] for row in measured)
