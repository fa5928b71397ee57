"""Few-shot class-incremental learning, right of the features: ``fit_base``, ``learn_session``, ``predict``."""

from faverage.fscil.heads import CosineHead, LinearHead, PrototypeHead
from faverage.fscil.learner import FewShotLearner
from faverage.fscil.metrics import forgetting, macro_f1, session_metrics
from faverage.fscil.rehearsal import Memory
from faverage.fscil.views import ViewLearner

__all__ = [
    "CosineHead",
    "FewShotLearner",
    "LinearHead",
    "Memory",
    "PrototypeHead",
    "ViewLearner",
    "forgetting",
    "macro_f1",
    "session_metrics",
]
