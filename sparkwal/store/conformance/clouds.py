"""Settings of a container of Azure or a bucket of Google that matter to a log, for `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from xml.etree import ElementTree

from sparkwal.errors import OptionError
from sparkwal.store.azure import AzureStore
from sparkwal.store.conformance.suite import Observation, StoreUnderTest, must
from sparkwal.store.s3_errors import Denied

R = TypeVar("R")
# Conditions of a rule of Google that hold only for former versions of an object.
_OF_FORMER = ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")


def soft_delete(tested: StoreUnderTest) -> Observation:
    store = tested.clouds[0]
    if isinstance(store, AzureStore):
        body = _asked(lambda: store.properties("service")).body
        policy = ElementTree.fromstring(body).find("DeleteRetentionPolicy")
        is_on = policy is not None and policy.findtext("Enabled") == "true"
        days = policy.findtext("Days") if policy is not None and is_on else None
    else:
        seconds = _google(tested, "softDeletePolicy").get("retentionDurationSeconds", 0)
        days = f"{int(seconds) / 86_400:g}" if int(seconds) else None
    if not days:
        return "off"
    return f"{days} days: collected and erased rows can be restored until then, and cost money"


def versioning(tested: StoreUnderTest) -> Observation:
    store = tested.clouds[0]
    if isinstance(store, AzureStore):
        # Azure names the version of an object only if it keeps versions.
        key = tested.key("version")
        store.put(key, b"version")
        is_on = "x-ms-version-id" in store.head(key).headers
    else:
        is_on = bool(_google(tested, "versioning").get("enabled"))
    stays = "enabled: objects that a collection deletes stay as versions, and cost money"
    return stays if is_on else "off"


def immutability(tested: StoreUnderTest) -> Observation:
    store = tested.clouds[0]
    if isinstance(store, AzureStore):
        headers = _asked(lambda: store.properties("container")).headers
        named = {"x-ms-has-immutability-policy": "a policy", "x-ms-has-legal-hold": "a legal hold"}
        rules = [name for header, name in named.items() if headers.get(header) == "true"]
    else:
        period = _google(tested, "retentionPolicy").get("retentionPeriod")
        rules = [f"a retention of {int(period) / 86_400:g} days"] if period else []
    if not rules:
        return "no policy and no hold"
    return f"{' and '.join(rules)}: collected objects stay until it ends"


def namespace(tested: StoreUnderTest) -> Observation:
    store = tested.clouds[0]
    if isinstance(store, AzureStore):
        headers = _asked(lambda: store.properties("account")).headers
        must("x-ms-account-kind" in headers, "the server does not describe its account")
        is_tree = headers.get("x-ms-is-hns-enabled") == "true"
    else:
        is_tree = bool(_google(tested, "hierarchicalNamespace").get("enabled"))
    return "hierarchical: its folders count as no objects" if is_tree else "flat"


def lifecycle_rules(tested: StoreUnderTest) -> Observation:
    """No rule deletes or archives objects of the log.

    Raises:
        OptionError: Azure shows its rules only to its management.
    """
    store = tested.clouds[0]
    folder = f"{tested.prefix}/".lstrip("/")
    advice = f"exclude {folder or 'the log'}: only sparkwal may delete its objects"
    if isinstance(store, AzureStore):
        raise OptionError(
            "Azure shows them only with az storage account management-policy show; if there are "
            f"any, {advice}"
        )
    harms = []
    for number, rule in enumerate(_google(tested, "lifecycle").get("rule", []), 1):
        condition = rule.get("condition", {})
        prefixes = condition.get("matchesPrefix") or [""]
        overlaps = any(folder.startswith(x) or x.startswith(folder) for x in prefixes)
        is_of_former = condition.get("isLive") is False or any(x in condition for x in _OF_FORMER)
        harm = {"Delete": "deletes", "SetStorageClass": "archives"}.get(rule["action"]["type"])
        if harm and overlaps and not is_of_former:
            harms.append(f"rule number {number} {harm} objects of the log")
    must(not harms, f"{', '.join(harms)}; {advice}")
    return "none deletes or archives objects of the log"


def _google(tested: StoreUnderTest, name: str) -> Mapping[str, Any]:
    """A setting of the bucket, or an empty one if it is not set."""
    store = tested.clouds[0]
    assert not isinstance(store, AzureStore)
    setting = _asked(store.settings).get(name)
    return setting if isinstance(setting, dict) else {}


def _asked(ask: Callable[[], R]) -> R:
    try:
        return ask()
    except Denied:
        raise OptionError("no permission to ask") from None
