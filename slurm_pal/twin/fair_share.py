# SPDX-License-Identifier: MIT
"""The fair-share factor of priority/multifactor: Fair Tree, or the classic formula (PriorityFlags=NO_FAIR_TREE).

Sources: Slurm's pages "Fair Tree Fairshare Algorithm" and "Classic Fairshare Algorithm". Shares are those of sacctmgr;
without any all accounts are alike, and so are the users of each.
"""

from __future__ import annotations

import math

from slurm_pal.slurm.shares import ROOT, Association


class _Node:
    """One association with what is below it."""

    __slots__ = ("below", "name", "shares", "usage")

    def __init__(self, name: str, shares: int) -> None:
        self.name, self.shares, self.usage = name, shares, 0.0
        self.below: list[_Node] = []

    @property
    def is_user(self) -> bool:
        return not self.below

    def sum(self) -> float:
        """Usage of all that is below, which is then known."""
        if self.below:
            self.usage = sum(one.sum() for one in self.below)
        return self.usage


Key = tuple[str, str]
"""(account, user)."""


class FairShare:
    """Usage by account and user, halved every `half_life_s` (0: never), and the factors that follow."""

    def __init__(
        self, associations: tuple[Association, ...], half_life_s: float, *, tree: bool = True, dampening: int = 1
    ) -> None:
        self._half_life_s, self._tree, self._dampening = half_life_s, tree, max(1, dampening)
        self._accounts = {one.account: one for one in associations if not one.user}
        self._users = {(one.account, one.user): one.shares for one in associations if one.user}
        self._usage: dict[Key, float] = dict.fromkeys(self._users, 0.0)
        self._decayed_s: float | None = None
        self._factors: dict[Key, float] | None = None

    def used(self, account: str, user: str, amount: float) -> None:
        """This user has used so much more."""
        key = self.key(account, user)
        self._usage[key] = self._usage.get(key, 0.0) + amount

    def decay(self, now_s: float) -> None:
        """Time has passed."""
        if self._half_life_s and self._decayed_s is not None and now_s > self._decayed_s:
            left = 0.5 ** ((now_s - self._decayed_s) / self._half_life_s)
            self._usage = {key: used * left for key, used in self._usage.items()}
        self._decayed_s = now_s

    def look(self) -> None:
        """From now on factors follow the usage so far: slurmctld works them out once in PriorityCalcPeriod."""
        self._factors = None

    def factor(self, account: str, user: str) -> float:
        """0..1; more is better."""
        key = self.key(account, user)
        if key not in self._usage:
            self._usage[key], self._factors = 0.0, None
        if self._factors is None:
            root = self._made()
            root.sum()
            self._factors = _by_rank(root) if self._tree else _classic(root, self._dampening)
        return self._factors[key]

    def key(self, account: str, user: str) -> Key:
        """Who is charged; who has no account is one."""
        return account or user, user

    def _made(self) -> _Node:
        root = _Node("", 1)
        nodes = {ROOT: root}

        def account(name: str, deep: int = 0) -> _Node:
            if name not in nodes:
                known = self._accounts.get(name)
                above = account(known.parent, deep + 1) if known is not None and deep < 50 else root
                nodes[name] = _Node(name, known.shares if known is not None else 1)
                above.below.append(nodes[name])
            return nodes[name]

        for (name, user), usage in self._usage.items():
            leaf = _Node(f"{name}\n{user}", self._users.get((name, user), 1))
            leaf.usage = usage
            account(name).below.append(leaf)
        return root


def _key(node: _Node) -> Key:
    account, _, user = node.name.partition("\n")
    return account, user


def _by_rank(root: _Node) -> dict[Key, float]:
    """Fair Tree: users ranked depth first, by shares over usage among siblings; ties are looked at together."""
    found: dict[Key, float] = {}

    def count(node: _Node) -> int:
        return sum(1 if one.is_user else count(one) for one in node.below)

    total = count(root)

    def level(siblings: list[tuple[_Node, float]]) -> None:
        """Give ranks to these, each with its level fair share."""
        siblings.sort(key=lambda pair: -pair[1])
        place = 0
        while place < len(siblings):
            value = siblings[place][1]
            tied = [node for node, other in siblings[place:] if other == value]
            rank = total - len(found)
            for node in tied:
                if node.is_user:
                    found[_key(node)] = rank / total
            below = [pair for node in tied if not node.is_user for pair in _levels(node)]
            if below:
                level(below)
            place += len(tied)

    level(_levels(root))
    return found


def _levels(parent: _Node) -> list[tuple[_Node, float]]:
    """The children with their level fair shares."""
    shares = sum(one.shares for one in parent.below)
    found = []
    for one in parent.below:
        part = one.usage / parent.usage if parent.usage > 0 else 0.0
        fair = one.shares / shares if shares else 0.0
        found.append((one, 0.0 if not fair else math.inf if not part else fair / part))
    return found


def _classic(root: _Node, dampening: int) -> dict[Key, float]:
    """2^(-effective usage / shares / dampening), level by level."""
    found: dict[Key, float] = {}
    total = root.usage

    def below(parent: _Node, share: float, effective: float) -> None:
        shares = sum(one.shares for one in parent.below)
        for one in parent.below:
            part = one.shares / shares if shares else 0.0
            own = one.usage / total if total > 0 else 0.0
            used = own if parent is root else own + (effective - own) * part
            if one.is_user:
                whole = share * part
                found[_key(one)] = math.pow(2.0, -used / whole / dampening) if whole > 0 else 0.0
            else:
                below(one, share * part, used)

    below(root, 1.0, 1.0)
    return found
