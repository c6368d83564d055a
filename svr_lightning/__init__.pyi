"""The public names, each with its module; ``__init__.py`` imports them on first use."""

from svr_lightning.analysis.operating_point import Certificate as Certificate
from svr_lightning.control.controller import Controller as Controller
from svr_lightning.control.controller import Result as Result
from svr_lightning.core.credit import turn_advantages as turn_advantages
from svr_lightning.core.losses import LossSpec as LossSpec
from svr_lightning.core.parsing import parse_self_check as parse_self_check
from svr_lightning.core.parsing import self_check_format_score as self_check_format_score
from svr_lightning.core.prompts import first_turn_messages as first_turn_messages
from svr_lightning.core.prompts import refinement_messages as refinement_messages
from svr_lightning.core.rewards import Reward as Reward
from svr_lightning.core.rewards import RewardWeights as RewardWeights
from svr_lightning.core.rewards import TurnReward as TurnReward
from svr_lightning.core.rewards import calibration_rewards as calibration_rewards
from svr_lightning.core.rewards import trajectory_return as trajectory_return
from svr_lightning.core.rewards import turn_rewards as turn_rewards
from svr_lightning.core.rewards import verification_rewards as verification_rewards
from svr_lightning.core.stopping import should_stop as should_stop
from svr_lightning.core.types import Decoding as Decoding
from svr_lightning.core.types import Problem as Problem
from svr_lightning.core.types import ScoredTurn as ScoredTurn
from svr_lightning.core.types import SelfCheck as SelfCheck
from svr_lightning.core.types import Verdict as Verdict
from svr_lightning.engines.transformers import TransformersEngine as TransformersEngine
from svr_lightning.policy.config import PolicyConfig as PolicyConfig
from svr_lightning.policy.policy import Policy as Policy
from svr_lightning.recipes.svr import SVR as SVR
from svr_lightning.rollout.collect import collect_rollout as collect_rollout
from svr_lightning.rollout.rendering import Renderer as Renderer
from svr_lightning.tasks import Task as Task
from svr_lightning.tasks import get_task as get_task
from svr_lightning.tasks.grading import get_grader as get_grader
from svr_lightning.training.config import OptimizerConfig as OptimizerConfig
from svr_lightning.training.data import SVRDataModule as SVRDataModule
from svr_lightning.training.module import SVRModule as SVRModule
from svr_lightning.training.sources import DataSource as DataSource
from svr_lightning.training.trainer import SVRTrainer as SVRTrainer
from svr_lightning.training.update import micro_batches as micro_batches
from svr_lightning.training.update import policy_update_loss as policy_update_loss

__version__: str
