"""Getting bytes into a folder: from a URL, out of a pinned package's wheel, from a model hub.

A transfer resumes where an earlier one, or an earlier process, was cut. What stops it for good becomes a `FetchError`,
whose message says what to do. This module does not decide whether a file can be trusted: the caller checks every hash
before it uses the folder.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

from utils import preflight

STALL_S = 30.0  # a server silent for so long is taken for dead; a slow one is not
FRUITLESS_ATTEMPTS = 5  # attempts in a row that bring no new byte
BACKOFF_S = 0.5  # doubled after each of these
MARKER = ".partial"  # file in an unfinished folder that says what it is to become


class FetchError(OSError):
    """A checkpoint could not be fetched; the message says why and what to do."""


class _TryAgain(Exception):
    """This answer of the server is of no use, the next one may be."""


def begin(folder: Path, note: str) -> None:
    """Keep in `folder` what an earlier call with the same `note` brought, and nothing else."""
    marker = folder / MARKER
    if not marker.exists() or marker.read_text(encoding="utf-8") != note:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        marker.write_text(note, encoding="utf-8")


def member(folder: Path, name: str) -> Path:
    """The path of `name` (with forward slashes) below `folder`; FetchError when it would lie outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or ":" in name or "\\" in name:
        raise FetchError(f"The source offers a file named {name!r}, which would leave {folder}: refused.")
    return folder.joinpath(*path.parts)


def check_disk(size: int, folder: Path, what: str) -> None:
    """Raise preflight.NotEnough (an OSError) unless `size` bytes are free where `folder` lies."""
    preflight.check(disk_gb=max(size, 0) / 1e9, path=folder, what=what)


def from_url(
    address: str,
    target: Path,
    *,
    hash_known: bool = False,
    size: int | None = None,
    headers: dict[str, str] | None = None,
    client=None,
    progress: bool = True,
) -> None:
    """Download `address` to `target`, going on from `target`.part where there is one.

    A part is continued only if the server shows (by an ETag or Last-Modified, sent back as If-Range) that the
    file is still the same, or if the caller will check the whole against a hash (`hash_known`). `size` is the
    length in bytes, where it is known; `client` an httpx.Client to use in place of a new one. Raises
    FetchError; the part is kept for the next call.
    """
    import httpx

    part, tag = (target.with_name(f"{target.name}.part{suffix}") for suffix in ("", ".tag"))
    target.parent.mkdir(parents=True, exist_ok=True)
    client = client or httpx.Client()
    at_start = furthest = _length(part)
    fruitless = 0
    while True:
        try:
            _transfer(client, address, dict(headers or {}), part, tag, hash_known, progress)
            if size is not None and _length(part) != size:
                length = _length(part)
                part.unlink()
                raise _TryAgain(f"{length} bytes came in place of {size}")
            break
        except (httpx.TransportError, _TryAgain) as error:
            if isinstance(error, httpx.ConnectError) and furthest == at_start:
                raise FetchError(
                    f"{address} cannot be reached ({error}). Is this machine offline? HTTPS_PROXY names a "
                    "proxy; CHECKPOINT=path puts a copy of your own in its place."
                ) from error
            fruitless = 0 if _length(part) > furthest else fruitless + 1
            furthest = max(furthest, _length(part))
            if fruitless >= FRUITLESS_ATTEMPTS:
                raise FetchError(
                    f"{address} was given up after {fruitless} attempts without progress, the last with: "
                    f"{error or type(error).__name__}. The next run goes on from byte {_length(part)}."
                ) from error
            time.sleep(BACKOFF_S * 2**fruitless if fruitless else 0)
    os.replace(part, target)
    tag.unlink(missing_ok=True)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _transfer(client, address, headers, part: Path, tag: Path, hash_known: bool, progress: bool) -> None:
    """One request, appended to `part`. Returns when the server has sent all that it announced."""
    from tqdm.auto import tqdm

    validator = tag.read_text(encoding="utf-8") if tag.exists() else ""
    have = _length(part) if validator or hash_known else 0
    headers["Accept-Encoding"] = "identity"  # ranges and lengths must count the bytes of the file itself
    if have:
        headers |= {"Range": f"bytes={have}-"} | ({"If-Range": validator} if validator else {})
    with client.stream("GET", address, headers=headers, follow_redirects=True, timeout=STALL_S) as reply:
        status, etag = reply.status_code, reply.headers.get("etag", "")
        span = reply.headers.get("content-range", "")
        if status == 416:
            if span == f"bytes */{have}":
                return  # an earlier process was killed between the last byte and the rename
            part.unlink()
            raise _TryAgain("the part is longer than the file")
        if status in (408, 425, 429) or status >= 500:
            raise _TryAgain(f"status {status} {reply.reason_phrase}")
        if status not in (200, 206):
            raise FetchError(_refused(address, status))
        other_file = validator.startswith('"') and etag != validator
        if status == 206 and (other_file or not span.startswith(f"bytes {have}-")):
            part.unlink(missing_ok=True)
            raise _TryAgain(f"the server sent {span!r} of {etag or 'a file'}, which does not continue the part")
        plain = reply.headers.get("content-encoding", "identity") == "identity"
        length = int(reply.headers["content-length"]) if plain and "content-length" in reply.headers else None
        if length is None and "transfer-encoding" not in reply.headers and not hash_known:
            raise FetchError(
                f"{address}: the server does not say how long the file is, so that half of it would look "
                "whole. Give its sha256 in checkpoints.toml."
            )
        check_disk(length or 0, part.parent, target_name := part.name.removesuffix(".part"))
        have = have if status == 206 else 0
        with part.open("ab" if status == 206 else "wb") as file:
            # Written before the first byte, so that no part is taken for one of another file. Weak tags
            # promise the same meaning, not the same bytes.
            steady = plain and not etag.startswith("W/")
            tag.write_text((etag or reply.headers.get("last-modified", "")) if steady else "", encoding="utf-8")
            total = None if length is None else have + length
            bar = tqdm(total=total, initial=have, desc=target_name, unit="B", unit_scale=True, disable=not progress)
            with bar:
                for block in reply.iter_bytes():
                    file.write(block)
                    bar.update(len(block))


def _refused(address: str, status: int) -> str:
    if status in (401, 403):
        return f"{address} answers {status}: it needs permission. Accept its licence there and set HF_TOKEN."
    return (
        f"{address} answers {status}: the file is not there. Correct the address in checkpoints.toml, "
        "or let CHECKPOINT=path name a copy of your own."
    )


def from_wheel(
    package: str,
    version: str,
    file: str,
    folder: Path,
    *,
    wheels: Path | None = None,
    progress: bool = True,
) -> None:
    """Take one file (or, with a trailing /, one folder) out of the wheel of `package`==`version` to `folder`.

    pip fetches the wheel, so that the reader's index, mirror, proxy and cache apply; with `wheels` it looks
    in that folder only. Nothing is installed. Raises FetchError.
    """
    requirement = f"{package}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", requirement]
    if wheels:
        command += ["--no-index", "--find-links", str(wheels)]
    elif _pip_resumes():
        command += ["--resume-retries", "5"]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if progress:
            print(f"fetching {requirement}", file=sys.stderr)
        done = subprocess.run(
            [*command, "-d", scratch], capture_output=True, text=True, errors="replace", encoding="utf-8"
        )
        wheel = next(iter(sorted(Path(scratch).glob("*.whl"))), None)
        if done.returncode or not wheel:
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1].rstrip(".")
            raise FetchError(
                f"pip could not fetch {requirement}{f' from {wheels}' if wheels else ''}: {last}. "
                "Either this machine is offline (PIP_INDEX_URL names a mirror, WHEELS a folder of wheels) "
                "or this version is no longer there."
            )
        base = file if file.endswith("/") else file.rpartition("/")[0] + "/"
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            picked = [name for name in names if name == file or base == file and name.startswith(base)]
            if not picked:
                raise FetchError(f"{wheel.name} holds no {file}. It holds: {', '.join(names[:10])}.")
            check_disk(sum(archive.getinfo(name).file_size for name in picked), folder, requirement)
            for name in picked:
                target = member(folder, name.removeprefix(base))
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)


def _pip_resumes() -> bool:
    try:
        version = importlib.metadata.version("pip").split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(version[0]), int(version[1])) >= (25, 1)


def from_hub(
    repo: str,
    patterns: tuple[str, ...],
    folder: Path,
    *,
    revision: str,
    hashes: dict[str, str] | None = None,
    progress: bool = True,
) -> tuple[str, dict[str, str]]:
    """Bring the files of a model hub's repository that match `patterns` into `folder`.

    huggingface_hub resolves the revision, lists the files and gives address, token and cache, so that
    HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they always mean. The bytes come through
    `from_url`, because since 1.18 huggingface_hub starts a file again when the process fetching it died.
    `hashes` (path -> sha256) are the recorded ones, None at first. Returns the commit and the sha256 that the
    hub itself states for its large files. Raises FetchError; what has arrived is kept for the next call.
    """
    import httpx
    import huggingface_hub as hub
    from huggingface_hub import errors
    from huggingface_hub.utils import build_hf_headers, filter_repo_objects, get_session

    endpoint = os.environ.get("HF_ENDPOINT", hub.constants.ENDPOINT).rstrip("/")
    way_out = (
        "HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy, HF_HUB_OFFLINE must not be 1; CHECKPOINT=path puts "
        "a copy of your own in its place."
    )
    try:
        api = hub.HfApi(endpoint=endpoint)
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=STALL_S)
        commit, entries = info.sha, {entry.rfilename: entry for entry in info.siblings}
    except (httpx.TransportError, errors.OfflineModeIsEnabled) as error:
        if not hashes:
            why = error or type(error).__name__
            raise FetchError(f"The hub at {endpoint} cannot be reached for {repo} ({why}). {way_out}") from error
        commit, entries = revision, dict.fromkeys(hashes)  # the reader's hub cache may hold them all
    except errors.HfHubHTTPError as error:
        raise FetchError(
            f"The hub at {endpoint} answers {error.response.status_code} for {repo} at revision {revision}. "
            "Check both in checkpoints.toml; a gated repository needs its licence accepted and HF_TOKEN set."
        ) from error
    names = sorted(filter_repo_objects(entries, allow_patterns=list(patterns)))
    if not names:
        raise FetchError(f"{repo} at {commit} has no file like {', '.join(patterns)}: correct checkpoints.toml.")

    begin(folder, f"{repo} {commit} {patterns}")
    missing = [name for name in names if not member(folder, name).exists()]
    parts = sum(part.stat().st_size for part in folder.rglob("*.part"))
    check_disk(sum((entries[name] and entries[name].size) or 0 for name in missing) - parts, folder, repo)
    for name in missing:
        target, entry = member(folder, name), entries[name]
        cached = hub.try_to_load_from_cache(repo, name, revision=commit)
        if isinstance(cached, str):
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = target.with_name(f"{target.name}.copy")
            shutil.copyfile(cached, copy)
            os.replace(copy, target)
            continue
        try:
            from_url(
                hub.hf_hub_url(repo, name, revision=commit, endpoint=endpoint),
                target,
                hash_known=bool(hashes or (entry and entry.lfs)),
                size=entry.size if entry else None,
                headers=build_hf_headers(),
                client=get_session(),
                progress=progress,
            )
        except errors.OfflineModeIsEnabled as error:
            raise FetchError(f"{name} of {repo} cannot be fetched ({error}). {way_out}") from error
    return commit, {name: entries[name].lfs.sha256 for name in names if entries[name] and entries[name].lfs}
