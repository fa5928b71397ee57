"""Few-shot class-incremental learning, right of the features: ``fit_base``, ``learn_session``, ``predict``."""

from faverage.fscil.heads import CosineHead, LinearHead, PrototypeHead
from faverage.fscil.join import JoinedLearner, join
from faverage.fscil.knowledge import Knowledge
from faverage.fscil.learner import FewShotLearner
from faverage.fscil.metrics import forgetting, macro_f1, session_metrics

__all__ = [
    "CosineHead",
    "FewShotLearner",
    "JoinedLearner",
    "Knowledge",
    "LinearHead",
    "PrototypeHead",
    "forgetting",
    "join",
    "macro_f1",
    "session_metrics",
]
