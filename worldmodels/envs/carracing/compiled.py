"""The compiled kernels on disk.

numba compiles what a function calls into the function, but looks for changes only in the function's
own file: after an update of one module, the kernels of another would go on with the old code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_DIGEST = "sources.sha256"


def forget_stale(compiled: Path, sources: Path) -> bool:
    """Remove kernels that were compiled from other sources than those that are there now.

    Args:
        compiled: folder in which numba keeps the kernels of one package.
        sources: folder of the package.

    Returns:
        whether there were any sources but the present ones, or none known.
    """
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    note, now = compiled / _DIGEST, digest.hexdigest()
    if note.exists() and note.read_text() == now:
        return False
    for index in compiled.glob("*.nbi"):
        index.unlink(missing_ok=True)
    compiled.mkdir(parents=True, exist_ok=True)
    note.write_text(now)
    return True
