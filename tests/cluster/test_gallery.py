"""Your method, your network and your data on real clusters, and the store afterwards without them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from orthocl.lab import Store, load_experiment, make_table, run_experiment
from orthocl.lab.reporting.report import write_report

pytestmark = [pytest.mark.cluster]


def use_gallery(folder: Path, gallery, backend: str, settings: dict[str, object]) -> None:
    gallery.write_parts(folder)
    (folder / "gallery.toml").write_text(gallery.EXPERIMENT)
    experiment = load_experiment(folder / "gallery.toml", seeds=[1])
    store = Store(folder / "store")
    results = run_experiment(
        experiment, store, backend=backend, backend_settings=settings, on_event=lambda event: None
    )
    assert [outcome.reason for outcome in results.failures] == []
    assert len(results.pairs) == 6
    gallery.remove_parts(folder)
    records = list(store.records())
    assert {record.settings.stream_label for record in records} == {"birds", "arrays", "clouds"}
    assert {record.settings.method_label for record in records} == {"leash", "ogd"}
    leash = next(record for record in records if record.settings.method_label == "leash")
    assert leash.settings.method.name == "my_method.py:Leash"
    assert len(make_table([(record.settings, record) for record in records]).rows) == 6
    page = write_report(folder / "page.html", [(r.settings, r) for r in records], title="gallery")
    assert "leash" in page.read_text()


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("shared", [True, False])
def test_on_ray(ray_cluster, tmp_path: Path, gallery, shared: bool) -> None:
    settings = {"address": ray_cluster.address, "shared": shared, "jobs": 2}
    use_gallery(tmp_path, gallery, "ray", settings)


def test_on_slurm(slurm_cluster, tmp_path: Path, gallery) -> None:
    use_gallery(tmp_path, gallery, "slurm", {"minutes": 5, "jobs": 2, "poll_seconds": 0.5})
