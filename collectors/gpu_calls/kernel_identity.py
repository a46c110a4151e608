"""Names, families and application classes of what was launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from collectors.records.gpu_calls import ProbeGroup
from collectors.records.process import ProcessKey
from kernels.application_classifier import ApplicationClassifier
from kernels.families import FamilyRules
from kernels.signatures import Signatures

from .activity_records import Named
from .kernel_names import OTHER, KernelNamer
from .meanings import CallKind
from .periods import Collected
from .probe_table import ProbeTable

GRAPH: Final = Named("(graph)", "other")
"""A graph's kernels are not seen one by one."""
_NO_ROOM: Final = Named(OTHER, "other")


@dataclass(slots=True)
class KernelIdentity:
    """Everything that is said of a launch beyond its count; forgets a process when told."""

    namer: KernelNamer
    rules: FamilyRules
    classifier: ApplicationClassifier
    graphs: frozenset[str]

    @classmethod
    def load(cls, namer: KernelNamer, table: ProbeTable) -> KernelIdentity:
        """Read the packaged rules and signatures."""
        graphs = frozenset(row.id for row in table.rows if row.kind is CallKind.GRAPH_LAUNCH)
        classifier = ApplicationClassifier(Signatures.load(), in_rounds=True)
        return cls(namer, FamilyRules.load(), classifier, graphs)

    def name(self, collected: Sequence[Collected]) -> dict[tuple[ProcessKey, int], Named]:
        """Name every kernel of some drains, and let the application classes follow."""
        named: dict[tuple[ProcessKey, int], Named] = {}
        wanted: dict[tuple[ProcessKey, int], None] = {}
        for collection in collected:
            self.namer.learn(collection.drain.names)
            for row in collection.drain.launches:
                key = row.process, row.kernel
                if not row.kernel:
                    named[key] = _NO_ROOM
                elif row.call in self.graphs:
                    named[key] = GRAPH
                else:
                    wanted[key] = None
        for key, name in self.namer.names(list(wanted)).items():
            named[key] = Named(name, self.rules.classify(name)[0])
        self._classify(collected, named)
        return named

    def forget(self, process: ProcessKey) -> None:
        """Forget a process that ended or runs another program."""
        self.namer.forget(process)
        self.classifier.forget(process)

    def _classify(
        self, collected: Sequence[Collected], named: dict[tuple[ProcessKey, int], Named]
    ) -> None:
        launches: defaultdict[tuple[ProcessKey, Named], float] = defaultdict(float)
        for collection in collected:
            share = collection.shares[ProbeGroup.LAUNCH]
            for row in collection.drain.launches if share > 0.0 else ():
                name = named[row.process, row.kernel]
                if name not in (GRAPH, _NO_ROOM):
                    launches[row.process, name] += row.launches / share
        for (process, name), count in launches.items():
            self.classifier.observe(process, name.kernel, name.family, round(count), None)
        self.classifier.end_round()
