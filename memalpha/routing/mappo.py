"""MAPPO (Yu et al., arXiv 2103.01955): a team of actors with one centralised value.

Each decider's actor sees its own view of the observation; the value sees all of it, and is used in training alone. Every decider's
ratio is clipped for itself and shares the team's advantage (section 3 and appendix of the paper: the team's reward is common).
Actors are shared (told by one-hot who they are) or separate; see ``memalpha.routing.policies.TeamPolicy``. With one decider it is
PPO with separate networks.

Faults of the public prompt router and how they are mended:

* its two optimizers held only the heads, so the encoder stayed as it was drawn: here one optimizer holds every parameter, once;
* probabilities were read out of a softmax that a softmax followed: here logits stay logits until ``log_softmax``;
* it took one prompt of one environment at a time: here many episodes go in lockstep;
* checkpoints lacked seeds and configuration: here they hold both, and loading says what does not fit.

Not covered: recurrent actors, value normalisation, workers in other processes.
"""

from __future__ import annotations

from memalpha.routing.learner import PPO


class MAPPO(PPO):
    """A team policy, trained by PPO decider by decider with a centralised value; arguments as for ``PPO``."""

    per_decider = True
    kinds = ("team",)
