"""Where clients run: in this process, or on Ray actors."""

from rayfl.system.memory import gc_paused

with gc_paused():  # this is the first that an actor imports of all that it needs
    from rayfl.engine.base import Engine
    from rayfl.engine.inline import Inline
    from rayfl.engine.ray_engine import Ray
    from rayfl.engine.session import BadUpdate

__all__ = ["BadUpdate", "Engine", "Inline", "Ray"]
