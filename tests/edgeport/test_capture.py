import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeport.capture import captured

ROOT = Path(__file__).resolve().parents[2]


def print_everywhere(word: str) -> None:
    print(f"{word} from Python")
    print(f"{word} as an error", file=sys.stderr)
    os.write(1, f"{word} on descriptor 1\n".encode())
    os.write(2, f"{word} on descriptor 2\n".encode())
    subprocess.run([sys.executable, "-c", f"print('{word} from a child')"], check=True)
    libc = ctypes.CDLL(None)
    libc.puts(f"{word} from C".encode())
    libc.fflush(None)


KINDS = (
    "from Python", "as an error", "on descriptor 1", "on descriptor 2", "from a child", "from C",
)  # fmt: skip


def test_everything_printed_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with captured(log, verbose=False):
        print_everywhere("inside")
    assert capfd.readouterr() == ("", "")
    assert sorted(log.read_text().splitlines()) == sorted(f"inside {kind}" for kind in KINDS)


def test_afterwards_everything_reaches_the_screen_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with captured(tmp_path / "log", verbose=False):
        print("inside")
    print_everywhere("after")
    out, err = capfd.readouterr()
    assert sorted((out + err).splitlines()) == sorted(f"after {kind}" for kind in KINDS)
    assert (tmp_path / "log").read_text() == "inside\n"


def test_what_was_printed_before_is_not_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    print("before", end="")
    with captured(tmp_path / "log", verbose=False):
        print("inside")
    assert capfd.readouterr().out == "before"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_restores_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    streams = sys.stdout, sys.stderr

    def fail() -> None:
        with captured(tmp_path / "log", verbose=False):
            print_everywhere("inside")
            raise error

    with pytest.raises(error):
        fail()
    assert (sys.stdout, sys.stderr) == streams
    os.write(1, b"after")
    assert capfd.readouterr() == ("after", "")
    assert "inside on descriptor 2" in (tmp_path / "log").read_text()


def test_nested_blocks_have_their_own_logs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with captured(outer, verbose=False):
        print_everywhere("first")
        with captured(inner, verbose=False):
            print_everywhere("second")
        print_everywhere("third")
    assert capfd.readouterr() == ("", "")
    assert sorted(inner.read_text().splitlines()) == sorted(f"second {k}" for k in KINDS)
    expected = [f"{word} {kind}" for word in ("first", "third") for kind in KINDS]
    assert sorted(outer.read_text().splitlines()) == sorted(expected)


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for word in ("one", "two"):
        with captured(tmp_path / "log", verbose=False):
            print(word)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_verbose_leaves_everything_on_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with captured(tmp_path / "log", verbose=True):
        print_everywhere("inside")
    out, err = capfd.readouterr()
    assert sorted((out + err).splitlines()) == sorted(f"inside {kind}" for kind in KINDS)
    assert not (tmp_path / "log").exists()


def test_warnings_are_logged_and_never_errors(tmp_path: Path) -> None:
    # In a process of its own: pytest records warnings in its own way.
    code = f"""
import warnings
from pathlib import Path
from edgeport.capture import captured
before = list(warnings.filters)
with captured(Path({str(tmp_path / "log")!r}), verbose=False):
    warnings.warn("a library is unhappy")
assert list(warnings.filters) == before
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "a library is unhappy" in (tmp_path / "log").read_text()


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    with captured(tmp_path / "log", verbose=False):
        print("lone surrogate \udc80")
        os.write(1, b"\xff\xfe\n")
    content = (tmp_path / "log").read_bytes()
    assert b"lone surrogate ?" in content
    assert b"\xff\xfe\n" in content


def test_no_descriptors_are_lost(tmp_path: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(5):
        with captured(tmp_path / "log", verbose=False):
            pass
    assert opened() == before


def test_closed_descriptors_stay_closed(tmp_path: Path) -> None:
    """As for daemons, and after `>&-` in a shell."""
    code = f"""
import os
from pathlib import Path
from edgeport.capture import captured
os.close(1); os.close(2)
with captured(Path({str(tmp_path / "log")!r}), verbose=False):
    os.write(1, b"inside")
for fd in (1, 2):
    try:
        os.fstat(fd)
    except OSError:
        continue
    os._exit(9)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "log").read_text() == "inside"
