"""The mutations of what is carried, compared and rebuilt of a checkpoint."""

from __future__ import annotations

from tests.simulation.mutation import Mutation

_BEGIN = "two machines begin, a source that grows, a crash"
_BACKUP = "a lost disk or a backup, then sparkwal.checkpoint"
_AS_IT_IS = "a lost disk or a backup, used as it is"
_LISTS = "two machines, a source that lists files"
_WRITES = "batch writes with other rows and with a lower version"
_ARCHIVES = "two machines, a source that archives, a crash"

MUTATIONS = [
    Mutation(
        "same-offsets",
        _AS_IT_IS,
        "checkpoints/carry.py",
        "            if other is not None:\n",
        "            if False:\n",
    ),
    Mutation(
        "only-last-replays",
        _AS_IT_IS,
        "checkpoints/carry.py",
        "        if batch_id < last:\n",
        "        if False:\n",
    ),
    Mutation(
        "same-rows",
        "a checkpoint that the sink does not see, and a backup of it",
        "checkpoints/carry.py",
        "        if difference is not None:\n",
        "        if False:\n",
    ),
    Mutation(
        "compare-replay",
        _AS_IT_IS,
        "protocol/commit.py",
        "        batch.carrier.check_repeated(batch.open_log, lead, batch_id, content)\n",
        "        pass\n",
    ),
    Mutation(
        "compare-source-files",
        _LISTS,
        "checkpoints/folder.py",
        "same = local == data or not is_of_source(name)",
        "same = True",
    ),
    Mutation(
        "same-input-before",
        "microbatches without rows, used as it is",
        "checkpoints/carry.py",
        "            if folder.digest(path, name) not in (None, crc):\n",
        "            if False:\n",
    ),
    Mutation(
        "same-fork",
        "two machines fork a query at two places",
        "checkpoints/carry.py",
        "        if begins[0] != begins[1]:\n",
        "        if False:\n",
    ),
    Mutation(
        "folder-same-fork",
        "two machines fork a query at two places",
        "checkpoints/rebuild.py",
        "    if (owner.origin and owner.origin.begin) != (origin and origin.begin):\n",
        "    if False:\n",
    ),
    Mutation(
        "checkpoint-position",
        _BEGIN,
        "protocol/commit_record.py",
        "    if carried is not None:\n        block, places",
        "    if carried is not None and query_id not in checkpoints:\n        block, places",
    ),
    Mutation(
        "inherit-checkpoints",
        _AS_IT_IS,
        "protocol/takeover.py",
        "checkpoints=progress.checkpoints,",
        "checkpoints={},",
    ),
    Mutation(
        "checkpoint-of-this-log",
        _BEGIN,
        "protocol/takeover.py",
        "if log_id and claim.log_id and log_id != claim.log_id:",
        "if False:",
    ),
    Mutation(
        "log-id-from-checkpoint",
        _BEGIN,
        "protocol/takeover.py",
        "log_id=live.log_id if live else claim.log_id or claim.plan_id,",
        "log_id=live.log_id if live else claim.plan_id,",
    ),
    Mutation(
        "folder-of-this-log",
        _BEGIN,
        "checkpoints/rebuild.py",
        "    if owner.log_id != state.log_id or folder.query_of(target) != state.query_id:\n",
        "    if False:\n",
    ),
    Mutation(
        "folder-not-behind",
        _BACKUP,
        "checkpoints/rebuild.py",
        '        return "the log is ahead of it"\n',
        "        return None\n",
    ),
    Mutation(
        "folder-not-ahead",
        "a log that a backup has put back by 1",
        "checkpoints/rebuild.py",
        '        return "it is ahead of the log"\n',
        "        return None\n",
    ),
    Mutation(
        "no-folder-ahead",
        "a log that a backup has put back by all microbatches",
        "checkpoints/rebuild.py",
        'return None if commits < 0 else "it is ahead of the log"',
        "return None",
    ),
    Mutation(
        "note-names-record",
        "a log that a backup has put back below microbatches without rows",
        "checkpoints/folder.py",
        "    if last is None or empty.after != last:\n",
        "    if last is None:\n",
    ),
    Mutation(
        "note-without-hole",
        "a log that was put back, a folder used as it is passes over rows",
        "checkpoints/carry.py",
        "        if folder.done(path, before, last) < batch_id - 1:\n",
        "        if False:\n",
    ),
    Mutation(
        "note-after-same-input",
        "two folders pass over rows, one used as it is",
        "checkpoints/carry.py",
        "        if last is not None:\n            self._check_same_input(path, last)\n        #",
        "        #",
    ),
    Mutation(
        "hold-for-rebuild",
        "a consumer that passes over rows, a lost disk",
        "protocol/holds.py",
        "    return min(begins, default=position)\n",
        "    return position\n",
    ),
    Mutation(
        "folder-same-plan",
        "two machines, microbatches without rows",
        "checkpoints/rebuild.py",
        "    if folder.other_input(logged, entry.files, target, last) is not None:\n",
        "    if False:\n",
    ),
    Mutation(
        "folder-has-commit",
        _ARCHIVES,
        "checkpoints/rebuild.py",
        "    if logged and commits != last and offsets == last and not entry.too_large:\n",
        "    if False:\n",
    ),
    Mutation(
        "rebuild-commit",
        _ARCHIVES,
        "checkpoints/rebuild.py",
        '    return {**files, f"commits/{last}": done}\n',
        "    return files\n",
    ),
    Mutation(
        "rebuild-offsets",
        _BEGIN,
        "checkpoints/rebuild.py",
        '    return {**files, f"commits/{last}": done}\n',
        '    files.pop(f"offsets/{last}")\n    return {**files, f"commits/{last}": done}\n',
    ),
    Mutation(
        "rebuild-from-last",
        _BEGIN,
        "checkpoints/rebuild.py",
        '    return {**files, f"commits/{last}": done}\n',
        '    files.pop(f"offsets/{last}")\n    return files\n',
    ),
    Mutation(
        "replace-by-rename",
        _AS_IT_IS,
        "checkpoints/replacing.py",
        "os.rename(draft, target)",
        "shutil.copytree(draft, target, dirs_exist_ok=True)",
        ("if target.exists():", "if False:"),
    ),
    Mutation(
        "carry-whole-folder",
        "two drivers on one folder",
        "checkpoints/carry.py",
        "        if not needed <= sizes.keys() and owner is not None:\n",
        "        if False:\n",
    ),
    Mutation(
        "carry-source-files",
        _LISTS,
        "checkpoints/folder.py",
        "    return sizes | _source_files(path)\n",
        "    return sizes\n",
    ),
    Mutation(
        "batch-same-rows",
        _WRITES,
        "protocol/repeated.py",
        "    if other is not None:\n",
        "    if False:\n",
    ),
    Mutation(
        "version-never-lower",
        _WRITES,
        "protocol/repeated.py",
        "    if version < last:\n",
        "    if False:\n",
    ),
]
