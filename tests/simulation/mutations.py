"""The mutations that the search must catch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One rule of the protocol, broken, and the configuration that notices."""

    name: str
    where: str
    file: str  # below sparkwal/, or below tests/ for the simulation's own
    old: str
    new: str
    also: tuple[str, str] | None = None  # another edit of the file


MUTATIONS = [
    Mutation(
        "a replayed microbatch is written again",
        "two lives of one query, every fault",
        "protocol/task.py",
        "if batch_id <= last_batch(open_log, plan.leadership, query_id):",
        "if False:",
    ),
    Mutation(
        "a record's transactions leave out its own",
        "two lives of one query, every fault",
        "protocol/commit_record.py",
        "return {**kept, query_id: (batch_id, timestamp_ms)}",
        "return kept",
    ),
    Mutation(
        "a new leader starts without the transactions of the log",
        "two lives of one query, every fault",
        "protocol/leadership.py",
        "txns=memories.txns,",
        "txns={},",
    ),
    Mutation(
        "a refused commit counts as durable without reading back",
        "two lives of one query, every fault",
        "protocol/commit.py",
        "if found.header.plan_id != header.plan_id:",
        "if False:",
    ),
    Mutation(
        "a read-back compares the leader instead of the plan",
        "two lives in one application, a crash",
        "protocol/commit.py",
        "if found.header.plan_id != header.plan_id:",
        "if found.header.leader_id != header.leader_id:",
    ),
    Mutation(
        "a leader record refused counts as ours",
        "two lives of one query, every fault",
        "protocol/leadership.py",
        "return found is not None and found.header.plan_id == header.plan_id",
        "return found is not None",
    ),
    Mutation(
        "a commit without an answer counts as durable",
        "one life, two batches, two partitions, every fault twice",
        "protocol/commit.py",
        "        if not error.maybe_applied:\n            raise\n",
        "        return\n",
    ),
    Mutation(
        "an old claim is used without a look at the log",
        "a sleeper after a collector",
        "protocol/clock.py",
        "return boot_id != clock.boot_id() or not 0 <= age < ttl_ms",
        "return False",
    ),
    Mutation(
        "records are collected before the grace is over",
        "a sleeper after a collector",
        "simulation/processes.py",
        'ask(Call("sleep", (grace_ms,)))',
        'ask(Call("sleep", (0,)))',
    ),
    Mutation(
        "a leader skips a position: the log has a hole",
        "one life, two batches, two partitions, every fault twice",
        "protocol/leadership.py",
        "position=head.gap,",
        "position=head.gap + 1,",
        ("number=keys.slot(head.gap, window),", "number=keys.slot(head.gap + 1, window),"),
    ),
    Mutation(
        "a task that finds its key taken names its own bytes instead of what is there",
        "a straggling task after two lives",
        "protocol/object_writer.py",
        "    if not created:\n",
        "    if False:\n",
    ),
    Mutation(
        "the store overwrites",
        "two lives of one query, every fault",
        "simulation/world.py",
        "    if key in state.objects:\n        return state, False\n",
        "",
    ),
    Mutation(
        "in flight is a count, not a span",
        "three in flight one after another, a reader after them",
        "protocol/pipeline.py",
        "return self._next - self._undecided < self._lead.in_flight_limit",
        "return self._next - self._undecided - len(self._durable) < self._lead.in_flight_limit",
    ),
    Mutation(
        "a record is acknowledged before its predecessors",
        "two appenders and a reader in the middle",
        "protocol/pipeline.py",
        "return range(first, self._undecided)",
        "return range(position, position + 1)",
    ),
    Mutation(
        "the zone after the leader record is not sealed",
        "two appenders and a reader in the middle",
        "protocol/leadership.py",
        "    _seal(log, header, spark_schema, reach)\n",
        "",
    ),
    Mutation(
        "a leader's term is not higher",
        "two appenders and a reader in the middle",
        "protocol/leadership.py",
        "term=live.term + 1 if live else 1,",
        "term=live.term if live else 1,",
        ("found.header.term >= leader.term", "found.header.term > leader.term"),
    ),
    Mutation(
        "a takeover forgets how far the former leader reached",
        "three in flight, a takeover with one, a reader after them",
        "protocol/leadership.py",
        "in_flight_limit=max(claim.in_flight_limit, head.in_flight_limit),",
        "in_flight_limit=claim.in_flight_limit,",
    ),
    Mutation(
        "a newcomer that loses the race does not ask for the log",
        "a busy appender is taken over in five looks whatever its pace",
        "protocol/leadership.py",
        "requests.ask(head.live.header)",
        "pass",
    ),
    Mutation(
        "a leader that is asked for the log goes on",
        "a busy appender is taken over in five looks whatever its pace",
        "protocol/handover.py",
        "        except NotFound:\n            return\n",
        "        except NotFound:\n            return\n        return\n",
    ),
    Mutation(
        "a newcomer asks for the term that it wants instead of the one that is to end",
        "a busy appender is taken over in five looks whatever its pace",
        "protocol/handover.py",
        "keys.handover_key(self._log.prefix, leader.log_id, leader.term)",
        "keys.handover_key(self._log.prefix, leader.log_id, leader.term + 1)",
    ),
    Mutation(
        "a writer that asked for the log takes it without a look at the first gap",
        "a busy appender hands over, a crash",
        "protocol/leadership.py",
        "requests.ask(head.live.header)",
        "requests.ask(head.live.header); return looked_ms, head, header, spark_schema",
    ),
    Mutation(
        "a seal carries its writer's own limit",
        "three in flight, takeovers with one and with two",
        "protocol/leadership.py",
        'position=position, reason="seal")',
        'position=position, reason="seal", in_flight_limit=1)',
    ),
    Mutation(
        "a commit record carries a smaller limit than its writer's",
        "two in flight, a sink, three in flight",
        "protocol/leadership.py",
        '            "in_flight_limit": self.in_flight_limit,\n',
        '            "in_flight_limit": 1,\n',
    ),
    Mutation(
        "a start in the middle does not look back",
        "three in flight one after another, a reader after them",
        "protocol/recovery.py",
        "    if limit == 1:\n        return record\n",
        "    return record\n",
    ),
    Mutation(
        "readers ignore terms",
        "two appenders and a reader in the middle",
        "protocol/replay.py",
        "if record.header.term < term:",
        "if False:",
    ),
    Mutation(
        "the leader record goes after the highest slot instead of into the first gap",
        "two appenders and a reader in the middle",
        "protocol/recovery.py",
        "    while gap in listed:\n        gap += 1\n",
        "    gap = max(listed, default=gap - 1) + 1\n",
    ),
    Mutation(
        "rows never get into the record",
        "two lives of one query, rows inlined, every fault",
        "protocol/commit_record.py",
        "    return encode_record(header, inlined, lead.spark_schema, codec, block)\n",
        "    return encode_record(header, [], lead.spark_schema, codec, block)\n",
    ),
    Mutation(
        "an appender's rows never get into the record",
        "an appender and a sink",
        "protocol/pipeline.py",
        "[(0, rows, batches)] if rows else []",
        "[]",
    ),
    Mutation(
        "an inlined row is doubled",
        "two lives of one query, rows inlined, every fault",
        "protocol/commit_record.py",
        "for batch in batches]\n        data",
        "for batch in [*batches, *batches]]\n        data",
    ),
    Mutation(
        "readers see nothing",
        "two queries and a reader",
        "protocol/replay.py",
        "            term = record.header.term\n            yield record\n",
        "            term = record.header.term\n            continue\n            yield record\n",
    ),
    Mutation(
        "readers stop one record before the head",
        "two queries and a reader",
        "protocol/replay.py",
        "for chunk in _chunks(start, end, at_once):",
        "for chunk in _chunks(start, end - 1, at_once):",
    ),
    Mutation(
        "a refused seal does not fence",
        "two in flight, a sink, three in flight",
        "protocol/leadership.py",
        "if found.header.term >= leader.term:",
        "if False:",
    ),
    Mutation(
        "an appender that slept does not look at the log before it claims a slot",
        "a sleeping appender after a collector",
        "protocol/claim_age.py",
        "                if look or self._is_old():\n",
        "                if False:\n",
    ),
    Mutation(
        "an appender whose request took long does not look at the log after it",
        "a sleeping appender after a collector",
        "protocol/claim_age.py",
        "if not is_old(self._clock, began, self._boot_id, self._ttl_ms):",
        "if True:",
    ),
    Mutation(
        "an appender acknowledges whatever is done",
        "an appender and a sink",
        "appender/persistence.py",
        "for ready in self._pipeline.durable(position):",
        "self._pipeline.durable(position)\n            for ready in (position,):",
    ),
    Mutation(
        "with retries exhausted a slot is skipped",
        "an appender that does not repeat, a fault",
        "appender/persistence.py",
        "                self._errors[position] = error\n                self._stop(error)\n",
        "                for ready in self._pipeline.durable(position):\n"
        "                    self._sent.pop(ready).batch.complete(ready)\n",
    ),
    Mutation(
        "a stopped appender goes on sending",
        "an appender that does not repeat, a fault",
        "appender/persistence.py",
        "                self._errors[position] = error\n                self._stop(error)\n",
        "                self._pipeline.durable(position)\n"
        "                self._sent.pop(position).batch.fail(error, Failure(error))\n",
    ),
    Mutation(
        "what is not acknowledged is told why the appender stopped, not what became of it",
        "an appender that does not repeat, a fault",
        "appender/persistence.py",
        "error = verdict(error, self._errors.get(position))",
        "error = self.failure.error",
    ),
    Mutation(
        "what follows a slot that may be durable counts as fenced",
        "an appender that does not repeat, a fault",
        "appender/verdicts.py",
        "    return before\n",
        "    return before if own else FencedError('')\n",
    ),
    Mutation(
        "last_sequence counts what is only sent",
        "an appender and a sink",
        "appender/persistence.py",
        "            self._sent[sent.position] = _InFlight(batch, taken[-1], rows)\n",
        "            self._sent[sent.position] = _InFlight(batch, taken[-1], rows)\n"
        "            self.last_sequence = taken[-1]\n",
    ),
    Mutation(
        "batches are sent newest first",
        "an appender and a sink",
        "appender/batches.py",
        "batch = self._waiting.popleft()",
        "batch = self._waiting.pop()",
    ),
]
