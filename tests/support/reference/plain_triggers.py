"""Triggers as one plain object per window and trigger: the reference of the trigger machine."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.manual import Manual
from tidegate.instants import MIN
from tidegate.spec import triggers as spec


@dataclass(frozen=True)
class World:
    """What one window sees; `time` is that of the new element, which `pending` does not count
    yet.
    """

    end: int
    watermark: int
    now: int
    pending: int
    time: int = 0

    @property
    def complete(self):
        return self.watermark >= self.end


class Plain:
    """A trigger of one window; this one is never ready."""

    def __init__(self, trigger, now):
        self.trigger = trigger
        self.parts = [plain(part, now) for part in trigger.children]
        self.done = False

    def finished(self):
        return self.done

    def element(self, world):
        pass

    def ready(self, world):
        return False

    def fire(self, world):
        pass

    def forget(self, world):
        """The pending pane is gone."""
        for part in self.parts:
            part.forget(world)

    def restart(self, world):
        self.forget(world)
        self.done = False
        for part in self.parts:
            part.restart(world)

    def merge(self, others):
        """Takes over what the same trigger of other windows knows."""
        self.done = all(one.done for one in [self, *others])
        for i, part in enumerate(self.parts):
            part.merge([other.parts[i] for other in others])


class PlainDefault(Plain):
    def ready(self, world):
        return world.complete


class PlainEveryElement(Plain):
    def ready(self, world):
        return world.pending > 0


class PlainAfterCount(Plain):
    count = 0

    def element(self, world):
        self.count += 1

    def ready(self, world):
        return not self.done and self.count >= self.trigger.n

    def fire(self, world):
        self.count, self.done = 0, True

    def forget(self, world):
        self.count = 0

    def merge(self, others):
        super().merge(others)
        self.count += sum(other.count for other in others)


class PlainAfterDelay(Plain):
    deadline = None

    def element(self, world):
        if self.deadline is None:
            self.deadline = world.now + self.trigger.delay

    def ready(self, world):
        return not self.done and self.deadline is not None and world.now >= self.deadline

    def fire(self, world):
        self.deadline, self.done = None, True

    def forget(self, world):
        self.deadline = None

    def merge(self, others):
        super().merge(others)
        self.deadline = min(
            (one.deadline for one in [self, *others] if one.deadline is not None), default=None
        )


class PlainEvery(Plain):
    def __init__(self, trigger, now):
        super().__init__(trigger, now)
        self.origin = now
        self.tick = now + trigger.interval if trigger.refire else None

    def after(self, now):
        tick = self.origin
        while tick <= now:
            tick += self.trigger.interval
        return tick

    def element(self, world):
        passed = self.tick is not None and world.pending == 0 and self.tick <= world.now
        if not self.trigger.refire and (self.tick is None or passed):
            self.tick = self.after(world.now)

    def ready(self, world):
        return (
            self.tick is not None
            and world.now >= self.tick
            and (self.trigger.refire or world.pending > 0)
        )

    def fire(self, world):
        self.forget(world)

    def forget(self, world):
        if not self.trigger.refire:
            self.tick = None
        elif world is not None:
            self.tick = self.after(world.now)

    def merge(self, others):
        everyone = [self, *others]
        self.origin = min(one.origin for one in everyone)
        self.tick = min((one.tick for one in everyone if one.tick is not None), default=None)


class PlainEventInterval(Plain):
    tick, floor = None, MIN

    def after(self, time):
        return next(
            tick for tick in range(time + 1, time + 100) if tick % self.trigger.interval == 0
        )

    def element(self, world):
        ticks = [max(self.after(world.time), self.floor), self.tick]
        self.tick = min(tick for tick in ticks if tick is not None)

    def ready(self, world):
        return self.tick is not None and world.watermark >= self.tick and world.pending > 0

    def fire(self, world):
        self.forget(world)

    def forget(self, world):
        if world is not None:
            self.tick, self.floor = None, MIN
            if world.watermark != MIN:
                self.tick = self.floor = self.after(world.watermark)

    def merge(self, others):
        everyone = [self, *others]
        self.floor = min(one.floor for one in everyone)
        self.tick = min((one.tick for one in everyone if one.tick is not None), default=None)


class PlainRepeatedly(Plain):
    def element(self, world):
        self.parts[0].element(world)

    def ready(self, world):
        return self.parts[0].ready(world)

    def fire(self, world):
        self.parts[0].fire(world)
        if self.parts[0].finished():
            self.parts[0].restart(world)


class PlainAfterEach(Plain):
    at = 0

    def finished(self):
        return self.at == len(self.parts)

    def element(self, world):
        if not self.finished():
            self.parts[self.at].element(world)

    def ready(self, world):
        return not self.finished() and self.parts[self.at].ready(world)

    def fire(self, world):
        if self.finished():
            return
        self.parts[self.at].fire(world)
        if self.parts[self.at].finished():
            self.at += 1
            if not self.finished():
                self.parts[self.at].restart(world)

    def restart(self, world):
        super().restart(world)
        self.at = 0

    def merge(self, others):
        super().merge(others)
        self.at = min(one.at for one in [self, *others])
        for part in self.parts[self.at + 1 :]:
            part.restart(None)


class PlainAfterAll(Plain):
    def element(self, world):
        for part in self.parts:
            if not part.finished():
                part.element(world)

    def ready(self, world):
        return not self.done and all(part.finished() or part.ready(world) for part in self.parts)

    def fire(self, world):
        for part in self.parts:
            part.restart(world)
        self.done = True


class PlainAfterAny(PlainAfterAll):
    def ready(self, world):
        return not self.done and any(part.ready(world) for part in self.parts)


class PlainOrFinally(Plain):
    def element(self, world):
        for part in self.parts:
            part.element(world)

    def ready(self, world):
        return not self.done and any(part.ready(world) for part in self.parts)

    def fire(self, world):
        main, until = self.parts
        if until.ready(world):
            until.fire(world)
            main.forget(world)
            self.done = True
        else:
            main.fire(world)
            self.done = self.done or main.finished()


class PlainAfterWatermark(Plain):
    late = False

    def __init__(self, trigger, now):
        super().__init__(trigger, now)
        parts = list(self.parts)
        self.early = parts.pop(0) if trigger.early else None
        self.after = parts.pop(0) if trigger.late else None

    def finished(self):
        return self.late and self.after is None

    def element(self, world):
        part = self.after if self.late else self.early
        if part is not None and not part.finished():
            part.element(world)

    def ready(self, world):
        if self.late:
            return self.after is not None and self.after.ready(world)
        return world.complete or (self.early is not None and self.early.ready(world))

    def fire(self, world):
        if self.late:
            self.fire_and_repeat(self.after, world)
        elif not world.complete:
            self.fire_early(world)
        else:
            self.late = True
            if self.early:
                self.early.forget(world)
            if self.after:
                self.after.restart(world)

    def fire_early(self, world):
        self.fire_and_repeat(self.early, world)

    def fire_and_repeat(self, part, world):
        if part is not None:
            part.fire(world)
            if part.finished():
                part.restart(world)

    def restart(self, world):
        super().restart(world)
        self.late = False

    def merge(self, others):
        super().merge(others)
        self.late = all(one.late for one in [self, *others])
        if self.after and not self.late:
            self.after.restart(None)


class PlainPolicy(PlainAfterWatermark):
    def fire_early(self, world):
        if self.early is not None:
            self.early.fire(world)


PLAIN = {
    spec.Never: Plain,
    Manual: Plain,
    spec.Default: PlainDefault,
    spec.EveryElement: PlainEveryElement,
    spec.AfterCount: PlainAfterCount,
    spec.AfterDelay: PlainAfterDelay,
    spec.Every: PlainEvery,
    spec.EventInterval: PlainEventInterval,
    spec.Repeatedly: PlainRepeatedly,
    spec.AfterEach: PlainAfterEach,
    spec.AfterAll: PlainAfterAll,
    spec.AfterAny: PlainAfterAny,
    spec.OrFinally: PlainOrFinally,
    spec.AfterWatermark: PlainAfterWatermark,
    spec.Policy: PlainPolicy,
}


def plain(trigger, now):
    return PLAIN[type(trigger)](trigger, now)
