"""Root leaves no files in the data directory of a service that runs as another user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from appliance.errors import BadSetting
from appliance.store.lock import DataDirLock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def test_root_is_sent_to_the_user_whose_directory_it_is(tmp_path: Path) -> None:
    owner = next(entry for entry in pwd.getpwall() if entry.pw_uid)
    os.chown(tmp_path, owner.pw_uid, -1)
    with pytest.raises(BadSetting, match=f"sudo -u {owner.pw_name} "), DataDirLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_root_may_use_its_own_and_what_is_nobodys(tmp_path: Path) -> None:
    with DataDirLock(tmp_path):
        pass
    os.chown(tmp_path, max(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid < 60_000) + 1, -1)
    with DataDirLock(tmp_path):
        pass
