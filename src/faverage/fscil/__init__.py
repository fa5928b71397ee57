"""Few-shot class-incremental learning, right of the features: ``fit_base``, ``learn_session``, ``predict``."""

from faverage.fscil.heads import LinearHead, PrototypeHead
from faverage.fscil.learner import FewShotLearner
from faverage.fscil.memory import Memory
from faverage.fscil.metrics import forgetting, macro_f1, session_metrics

__all__ = [
    "FewShotLearner",
    "LinearHead",
    "Memory",
    "PrototypeHead",
    "forgetting",
    "macro_f1",
    "session_metrics",
]
