"""The files of an archive by its manifests, without Spark, Java and a server."""

import json
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emsworker import ConfigError
from emsworker.arrow import ArchiveDamaged, archive_files, manifest
from emsworker.arrow.folder import ArrowFolder, LocalFolder
from emsworker.arrow.manifest import File, Manifest, Part, read_all_manifests, read_manifests
from emsworker.core.offsets import OffsetRange
from tests.unit.test_extras import _WITHOUT


def write(lake: Path, segment: str, start: int, end: int, days: int = 1, **facts: Any) -> list[str]:
    """A segment of one message a file, as the job ``archive`` leaves it; returns its paths."""
    topic = facts.pop("topic", "orders")
    files = []
    for offset in range(start, end):
        day = f"2026-11-{20 + offset % days:02}"
        path = f"data/{topic.replace(':', '%3A')}/{segment}/messages/date={day}/part-{offset}.parquet"
        (lake / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"offset": [offset]}), lake / path)
        files.append(File("messages", path, day, 1, (lake / path).stat().st_size))
    part = Part("messages", OffsetRange(1, 0, start, end), end - start, 1)
    when = f"2026-11-22T00:00:{start:02}+00:00"
    Manifest(segment, "stream", topic, 1, when, (part,), tuple(files), **facts).write(LocalFolder(lake))
    return [str(lake / file.path) for file in files]


def offsets(paths: list[str]) -> list[int]:
    return [offset for path in paths for offset in pq.ParquetFile(path).read()["offset"].to_pylist()]


def test_files_are_those_of_the_manifests(tmp_path: Path) -> None:
    one, two = write(tmp_path, "a", 1, 4), write(tmp_path, "b", 4, 6)
    orphan = tmp_path / "data/orders/dead/messages/date=2026-11-20/part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"")
    (tmp_path / "manifests/orders/.c.json.tmp").write_text("{")
    (Path(one[0]).parent / "part-x.parquet").write_bytes(b"")
    assert archive_files(tmp_path, "orders") == one + two
    assert offsets(archive_files(str(tmp_path), "orders")) == [1, 2, 3, 4, 5]
    assert archive_files(tmp_path, "orders", "claims") == []


def test_days_limit_the_files(tmp_path: Path) -> None:
    write(tmp_path, "a", 1, 10, days=3)
    assert offsets(archive_files(tmp_path, "orders", since="2026-11-21")) == [1, 2, 4, 5, 7, 8]
    assert offsets(archive_files(tmp_path, "orders", until=date(2026, 11, 20))) == [3, 6, 9]
    assert archive_files(tmp_path, "orders", since="2026-11-21", until="2026-11-20") == []


def test_what_was_compacted_is_seen_once(tmp_path: Path) -> None:
    write(tmp_path, "a", 1, 3)
    write(tmp_path, "b", 3, 5)
    assert offsets(archive_files(tmp_path, "orders")) == [1, 2, 3, 4]
    write(tmp_path, "ab", 1, 5, origins=["a", "b"], compacted_at="2026-11-23T00:00:00+00:00")
    write(tmp_path, "c", 5, 6)
    assert offsets(archive_files(tmp_path, "orders")) == [1, 2, 3, 4, 5]
    write(tmp_path, "abc", 1, 6, origins=["a", "b", "c"], compacted_at="2026-11-23T00:00:00+00:00")
    (tmp_path / "manifests/orders/b.json").unlink()
    assert all("/abc/" in path for path in archive_files(tmp_path, "orders"))
    assert [one.segment for one in read_manifests(LocalFolder(tmp_path), "orders")] == ["abc"]
    assert len(read_all_manifests(LocalFolder(tmp_path), "orders")) == 4


def test_a_manifest_that_goes_while_it_is_read_is_looked_for_again(tmp_path: Path) -> None:
    """Compaction removes replaced manifests; the list of names is then older than the folder."""
    write(tmp_path, "a", 1, 3)

    class Changing(LocalFolder):
        def read(self, path: str) -> str:
            if path.endswith("/a.json") and (tmp_path / path).exists():
                write(tmp_path, "ab", 1, 5, origins=["a", "b"], compacted_at="2026-11-23T00:00:00+00:00")
                (tmp_path / path).unlink()
            return super().read(path)

    assert [one.segment for one in read_manifests(Changing(tmp_path), "orders")] == ["ab"]


def test_wrong_arguments_are_named_together(tmp_path: Path) -> None:
    write(tmp_path, "a", 1, 2)
    with pytest.raises(ConfigError) as caught:
        archive_files(tmp_path, "orders", "letters", since="yesterday", until=datetime(2026, 11, 20))
    assert [problem.name for problem in caught.value.problems] == ["dataset", "since", "until"]
    with pytest.raises(ConfigError, match=r"topic = mails: the archive in .* has orders"):
        archive_files(tmp_path, "mails")
    with pytest.raises(ConfigError, match=r"folder = .*: there is no archive in it"):
        archive_files(tmp_path / "none", "orders")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is no folder"):
        archive_files(tmp_path / "file", "orders")
    with pytest.raises(ConfigError, match=r"folder = ftp://x/y: PyArrow cannot use it"):
        archive_files("ftp://x/y", "orders")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1}'])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    write(tmp_path, "a", 1, 2)
    (tmp_path / "manifests/orders/b.json").write_text(text)
    with pytest.raises(ArchiveDamaged, match=r"manifests/orders/b\.json is no manifest"):
        archive_files(tmp_path, "orders")
    newer = json.loads((tmp_path / "manifests/orders/a.json").read_text()) | {"version": 2}
    (tmp_path / "manifests/orders/b.json").write_text(json.dumps(newer))
    with pytest.raises(ArchiveDamaged, match="is of version 2; this code reads 1"):
        archive_files(tmp_path, "orders")


def test_pyarrows_file_systems_serve_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(tmp_path, "a", 1, 4, topic="shop:orders")
    url = f"file://{tmp_path}"
    assert archive_files(url, "shop:orders") == paths, "a path of this machine stays one"
    monkeypatch.setattr(manifest, "open_readable", ArrowFolder)
    found = archive_files(url, "shop:orders")
    assert found == [f"file://{path}" for path in paths]
    assert ArrowFolder(url).children("nowhere") == []


def test_a_local_archive_needs_no_extra(tmp_path: Path) -> None:
    write(tmp_path, "a", 1, 3)
    code = f"{_WITHOUT}import emsworker.arrow\nprint(len(emsworker.arrow.archive_files({str(tmp_path)!r}, 'orders')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "2", done.stderr
    code = code.replace(repr(str(tmp_path)), "'s3://bucket/lake'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().endswith("pip install 'emsworker[arrow]'"), done.stderr
