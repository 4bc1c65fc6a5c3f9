from __future__ import annotations

from pathlib import Path

from bullpen.cli.worker_process.reload import differing, source_files


def test_only_source_files_are_looked_at(tmp_path: Path) -> None:
    for name in ("app.py", "package/inner/jobs.py", "notes.txt", ".hidden/x.py", "env/pyvenv.cfg", "env/lib/y.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert sorted(dict(source_files(tmp_path))) == ["app.py", "package/inner/jobs.py"]


def test_new_removed_and_changed_files_are_noticed(tmp_path: Path) -> None:
    for name in ("same.py", "gone.py", "changed.py"):
        (tmp_path / name).write_text("")
    before = dict(source_files(tmp_path))
    assert differing(before, dict(source_files(tmp_path))) == []
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").write_text("")
    (tmp_path / "changed.py").write_text("x = 1")
    assert differing(before, dict(source_files(tmp_path))) == ["changed.py", "gone.py", "new.py"]
