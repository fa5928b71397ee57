"""Few-shot class-incremental learning, right of the features: ``fit_base``, ``learn_session``, ``predict``."""

from faverage.fscil.heads import CosineHead, LinearHead, PrototypeHead
from faverage.fscil.knowledge import Knowledge
from faverage.fscil.learner import FewShotLearner
from faverage.fscil.metrics import forgetting, macro_f1, session_metrics

__all__ = [
    "CosineHead",
    "FewShotLearner",
    "Knowledge",
    "LinearHead",
    "PrototypeHead",
    "forgetting",
    "macro_f1",
    "session_metrics",
]
