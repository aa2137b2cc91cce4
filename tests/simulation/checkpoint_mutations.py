"""The mutations of what is carried, compared and rebuilt of a checkpoint."""

from __future__ import annotations

from .mutation import Mutation

_BEGIN = "two machines begin, a source that grows, a crash"
_BACKUP = "a lost disk or a backup, then sparkwal.checkpoint"
_AS_IT_IS = "a lost disk or a backup, used as it is"
_LISTS = "two machines, a source that lists files"
_WRITES = "batch writes with other rows and with a lower version"
_ARCHIVES = "two machines, a source that archives, a crash"

MUTATIONS = [
    Mutation(
        "a replay is skipped whatever its offsets",
        _AS_IT_IS,
        "checkpoints/carry.py",
        "            if other is not None:\n",
        "            if False:\n",
    ),
    Mutation(
        "a replay of an older microbatch is skipped",
        _AS_IT_IS,
        "checkpoints/carry.py",
        "        if batch_id < last:\n",
        "        if False:\n",
    ),
    Mutation(
        "a replay is skipped whatever its rows",
        "a checkpoint that the sink does not see, and a backup of it",
        "checkpoints/carry.py",
        "        if unlike is not None:\n",
        "        if False:\n",
    ),
    Mutation(
        "a replay is not held against the log",
        _AS_IT_IS,
        "protocol/commit.py",
        "        batch.carrier.check_replay(batch.open_log, lead, batch_id, content)\n",
        "        pass\n",
    ),
    Mutation(
        "files of a source are not compared",
        _LISTS,
        "checkpoints/folder.py",
        'same = mine == data or not name.startswith(f"{SOURCES}/")',
        "same = True",
    ),
    Mutation(
        "a folder goes on after a microbatch without rows that the log has with other input",
        "microbatches without rows, used as it is",
        "checkpoints/carry.py",
        "            if folder.digest(path, name) not in (None, crc):\n",
        "            if False:\n",
    ),
    Mutation(
        "a record does not say where the checkpoint is now",
        _BEGIN,
        "protocol/commit_record.py",
        "    if carried is None:\n        return checkpoints\n",
        "    if carried is None or query_id in checkpoints:\n        return checkpoints\n",
    ),
    Mutation(
        "a new leader starts without the checkpoints of the log",
        _AS_IT_IS,
        "protocol/leadership.py",
        "checkpoints=memories.checkpoints,",
        "checkpoints={},",
    ),
    Mutation(
        "a checkpoint of another log is taken for this one's",
        _BEGIN,
        "protocol/leadership.py",
        "if found and claim.log_id and found != claim.log_id:",
        "if False:",
    ),
    Mutation(
        "a log does not get the name that its first checkpoint has drawn",
        _BEGIN,
        "protocol/leadership.py",
        "log_id=live.log_id if live else claim.log_id or claim.plan_id,",
        "log_id=live.log_id if live else claim.plan_id,",
    ),
    Mutation(
        "a folder of another log is used as it is",
        _BEGIN,
        "checkpoints/rebuild.py",
        "    if owner.log_id != state.log_id or folder.query_of(place) != state.query_id:\n",
        "    if False:\n",
    ),
    Mutation(
        "a folder that is behind the log is used as it is",
        _BACKUP,
        "checkpoints/rebuild.py",
        '        return "the log is ahead of it"\n',
        "        return None\n",
    ),
    Mutation(
        "a folder that is ahead of the log is used as it is",
        "a log that a backup has put back by 1",
        "checkpoints/rebuild.py",
        '        return "it is ahead of the log"\n',
        "        return None\n",
    ),
    Mutation(
        "a folder of a log that lost all its microbatches is used as it is",
        "a log that a backup has put back by all microbatches",
        "checkpoints/rebuild.py",
        'return None if commits < 0 else "it is ahead of the log"',
        "return None",
    ),
    Mutation(
        "a note is believed whatever record it goes on after",
        "a log that a backup has put back below microbatches without rows",
        "checkpoints/empty.py",
        '        if last is None or note["after"] != _plain(last):',
        "        if last is None:",
    ),
    Mutation(
        "a folder goes on without rows after what nobody knows to be done",
        "a log that was put back, a folder used as it is passes over rows",
        "checkpoints/carry.py",
        "        if empty.done(path, before, last) < batch_id - 1:\n",
        "        if False:\n",
    ),
    Mutation(
        "a folder notes microbatches after one that the log has with other input",
        "two folders pass over rows, one used as it is",
        "checkpoints/carry.py",
        "        if last is not None:\n            self._check_goes_on(path, last)\n        # What",
        "        # What",
    ),
    Mutation(
        "a consumer lets go of what a rebuild would read again",
        "a consumer that passes over rows, a lost disk",
        "protocol/holds.py",
        "    return min(held, default=position)\n",
        "    return position\n",
    ),
    Mutation(
        "a folder that plans a microbatch otherwise than the log holds it is used as it is",
        "two machines, microbatches without rows",
        "checkpoints/rebuild.py",
        "    if folder.other_input(theirs, entry.files, place, last) is not None:\n",
        "    if False:\n",
    ),
    Mutation(
        "a folder that does not know its last commit is used as it is",
        _ARCHIVES,
        "checkpoints/rebuild.py",
        "    if theirs and commits != last and offsets == last and not _lost(entry):\n",
        "    if False:\n",
    ),
    Mutation(
        "a folder is rebuilt without the commit of its last microbatch",
        _ARCHIVES,
        "checkpoints/rebuild.py",
        '    return {**files, f"commits/{last}": done}\n',
        "    return files\n",
    ),
    Mutation(
        "a folder is rebuilt without the offsets of its last microbatch",
        _BEGIN,
        "checkpoints/rebuild.py",
        '    return {**files, f"commits/{last}": done}\n',
        '    files.pop(f"offsets/{last}")\n    return {**files, f"commits/{last}": done}\n',
    ),
    Mutation(
        "a folder is rebuilt from the record before the last",
        _BEGIN,
        "checkpoints/rebuild.py",
        '    return {**files, f"commits/{last}": done}\n',
        '    files.pop(f"offsets/{last}")\n    return files\n',
    ),
    Mutation(
        "a folder is rebuilt in its place, one file after another",
        _AS_IT_IS,
        "checkpoints/replacing.py",
        "os.rename(draft, place)",
        "shutil.copytree(draft, place, dirs_exist_ok=True)",
        ("if place.exists():", "if False:"),
    ),
    Mutation(
        "a record carries what another start has left of a folder",
        "two drivers on one folder",
        "checkpoints/carry.py",
        "        if not needed <= sizes.keys() and folder.owner_of(path) is not None:\n",
        "        if False:\n",
    ),
    Mutation(
        "a record carries nothing of the list of a source",
        _LISTS,
        "checkpoints/folder.py",
        "    return sizes | _source_files(path)\n",
        "    return sizes\n",
    ),
    Mutation(
        "a batch write is skipped whatever its rows",
        _WRITES,
        "protocol/repeated.py",
        "    if other is not None:\n",
        "    if False:\n",
    ),
    Mutation(
        "a batch write with a lower version is skipped",
        _WRITES,
        "protocol/repeated.py",
        "    if version < last:\n",
        "    if False:\n",
    ),
]
