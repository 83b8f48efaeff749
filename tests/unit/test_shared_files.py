"""Shared files of counters on a file system that is full."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from emsworker.observe.shared_files import shared_folder, use_reserved_files

_KEY = "x" * 1000


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Make a folder whose file system has space for so many bytes a file."""
    small = tmp_path / "small"
    small.mkdir()
    monkeypatch.setattr(values, "MmapedDict", MmapedDict)
    really = os.posix_fallocate

    def limit(most: int) -> Path:
        def fallocate(descriptor: int, offset: int, size: int) -> None:
            if small in Path(f"/proc/self/fd/{descriptor}").readlink().parents and size > most:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            really(descriptor, offset, size)

        monkeypatch.setattr(os, "posix_fallocate", fallocate)
        return small

    return limit


def test_a_file_that_no_longer_fits_goes_on_elsewhere_with_all_its_counts(
    full: Callable[[int], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with shared_folder(full(1 << 18)) as folder:
        use_reserved_files()
        path = folder / "counter_0.db"
        counts = values.MmapedDict(str(path))
        for number in range(600):  # of 1 kB each
            counts.write_value(f"{number:04}{_KEY}", number, 0.0)
        assert path.is_symlink() and folder not in path.resolve().parents
        found = {key: value for key, value, *_ in MmapedDict.read_all_values_from_file(str(path))}
        assert found == {f"{number:04}{_KEY}": number for number in range(600)}
        size = path.stat()
        assert size.st_blocks * 512 >= size.st_size, "all of it has its space"
        counts.close()
        after = values.MmapedDict(str(path))  # of the next process
        assert after.read_value(f"0599{_KEY}")[0] == 599
        after.close()
        target = path.resolve()
    assert not folder.exists() and not target.exists()
    assert len([record for record in caplog.records if "no space left" in record.message]) == 1


def test_a_folder_without_space_is_not_used_at_all(
    full: Callable[[int], Path], caplog: pytest.LogCaptureFixture
) -> None:
    small = full(0)
    with shared_folder(small) as folder:
        assert small not in folder.parents and list(small.iterdir()) == []
        use_reserved_files()
        counts = values.MmapedDict(str(folder / "counter_0.db"))
        counts.write_value("a", 1.0, 0.0)
        counts.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] and str(small) in caplog.text


def test_another_error_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), shared_folder(tmp_path / "missing"):
        raise AssertionError("not reached")
