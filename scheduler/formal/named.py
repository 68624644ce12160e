"""The whole problem in CP-SAT: the counts of `CountModel`, and the place of every job and replica."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from tidegrid.scheduler.formal.model import CountModel, Facts, Load, Part, Var, read
from tidegrid.scheduler.formal.places import Column, Pattern, Places
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.problem import App


class NamedModel(CountModel):
    """`CountModel` with the place of every job, and of every replica whose moves are limited or cost something.

    Replicas of one GPU that may move freely are named afterwards: any free GPUs will do (`naming`).

    Parameters
    ----------
    terms, part
        As for `CountModel`.
    counts
        Where given, apps hold exactly these numbers of replicas.
    known
        Plans whose places of replicas must be among the choices, whatever they are.

    Attributes
    ----------
    complete
        Whether every place of every replica is among the choices: only then its bound bounds the problem.
    z
        ``z[j, c, place]``: job j runs in column c in that place: a block's first GPU in a line, else a node.
    y
        ``y[a, t, pattern]``: replicas of app a in that place in step t.
    """

    def __init__(
        self,
        terms: Terms,
        part: Part | None = None,
        counts: Mapping[tuple[int, int], int] | None = None,
        known: tuple[Facts, ...] = (),
    ) -> None:
        super().__init__(terms, part)
        self.complete = True
        self.z: dict[tuple[int, Column, int], Var] = {}
        self.y: dict[tuple[int, int, Pattern], Var] = {}
        self._entering: dict[tuple[int, int, Pattern], Var] = {}
        # GPUs of each class that a column takes: (class, variable, factor).
        self._pieces: dict[tuple[int, Column], list[tuple[int, Var, int]]] = defaultdict(list)
        self._use: dict[tuple[str, int, int], Load] = defaultdict(Load)
        self._name_jobs()
        for a, app in enumerate(self.problem.apps):
            if not self.moves_freely(app):
                self._name_replicas(a, app, (*known, self.part.kept))
        self._one_task_a_cell()
        for key, count in (counts or {}).items():
            self.cp.add(self.n[key] == count)

    def moves_freely(self, app: App) -> bool:
        """Whether an app's GPUs may be any free ones in each step."""
        return (
            app.replica == 1
            and not self.terms.swaps_bind(app)
            and self.terms.entry(app, 0) == 0.0
            and not self.terms.places[app.pool].any_drain
        )

    def _name_jobs(self) -> None:
        """Rule 3: a placed job has one legal place, the same in all its steps."""
        for (j, column), x in self.x.items():
            if self.problem.jobs[j].running:
                continue  # its GPUs are free for no one: `Places.free`
            places = self.terms.places[column.pool]
            if j in self.part.columns:
                self._choose_place(j, column, x)
            else:
                self._pieces[j, column] = [(k, 1, many) for k, many in self.part.kept.lies[j]]
            each = column.gpus // column.nodes if places.pool.by_node else 1
            for k, variable, factor in self._pieces[j, column]:
                if self._out_of_reach(column.pool, places.classes[k][0]):
                    continue
                top = each // factor
                for t in range(column.start, min(column.end, self.terms.steps)):
                    self._use[column.pool, k, t].add(variable, factor, top)

    def _choose_place(self, j: int, column: Column, x: Var) -> None:
        places = self.terms.places[column.pool]
        by_node = places.pool.by_node
        open_ = self._within_reach(places, column)
        many = column.nodes if by_node else 1
        named = []
        for place in open_:
            z = (
                x
                if len(open_) == many
                else self._bool(f"z[{self.problem.jobs[j].id},{column.start},{place}]")
            )
            self.z[j, column, place] = z
            named.append(z)
            self._fill(j, column, place, z)
        if len(open_) != many:
            # too few places: then the sum is 0, and so is x
            total = self._total((z, 1) for z in named) if len(open_) > many else Load()
            self.cp.add(total.expression == many * x)

    def _fill(self, j: int, column: Column, place: int, z: Var) -> None:
        """Take a place's GPUs from its classes."""
        places = self.terms.places[column.pool]
        classes = places.classes_at(column, place)
        pieces = self._pieces[j, column]
        each = column.gpus // column.nodes
        if not places.pool.by_node:
            pieces += [(k, z, 1) for k, _ in classes]
        elif len(classes) == 1:
            pieces.append((classes[0][0], z, each))
        else:
            total = Load()
            for k, room in classes:
                u = self.cp.new_int_var(0, min(room, each), "")
                pieces.append((k, u, 1))
                total.add(u)
            self.cp.add(total.expression == each * z)

    def _within_reach(self, places: Places, column: Column) -> tuple[int, ...]:
        """Places of a column that the part may use."""
        found = places.at(column)
        if self.part.reach is None:
            return found
        pool, low, high = self.part.reach
        if pool != column.pool:
            return ()
        if places.pool.by_node:
            return tuple(n for n in found if low <= n * places.node and (n + 1) * places.node <= high)
        return found[bisect_left(found, low) : bisect_right(found, high - column.gpus)]

    def _out_of_reach(self, pool: str, gpu: int) -> bool:
        """Whether nothing that is free can meet a GPU."""
        reach = self.part.reach
        return reach is not None and (pool != reach[0] or not reach[1] <= gpu < reach[2])

    def _name_replicas(self, a: int, app: App, known: tuple[Facts, ...]) -> None:
        """Rules 4 and 6: what enters plus what leaves is at most the cap; what is closed is not entered.

        As many leave as enter less the change of the count; whoever stood on what goes down leaves freely.
        """
        places = self.terms.places[app.pool]
        before: Mapping[Pattern, Var] = Counter(places.pattern(one) for one in app.held_replicas)
        seen = dict.fromkeys(before)
        for facts in known:
            for t in range(self.terms.steps):
                seen.update(dict.fromkeys(facts.held.get((a, t), ())))
        if self.part.apps:
            listed, complete = places.patterns(app)
            self.complete = self.complete and complete
            seen = dict.fromkeys(listed) | seen
        for t in range(self.terms.steps):
            now: dict[Pattern, Var] = dict(self.part.kept.held.get((a, t), {}))
            if self.part.apps:
                now = self._place_replicas(a, t, list(seen), before)
            for pattern, y in now.items():
                for k, gpus in pattern:
                    room = len(places.classes[k]) // gpus
                    self._use[app.pool, k, t].add(y, gpus, room)
            before = now

    def _place_replicas(
        self, a: int, t: int, patterns: list[Pattern], before: Mapping[Pattern, Var]
    ) -> dict[Pattern, Var]:
        app = self.problem.apps[a]
        places = self.terms.places[app.pool]
        down, drains = places.down(t), places.drains(t)
        now: dict[Pattern, Var] = {}
        total, entering, forced = Load(), Load(), Load()
        for pattern in patterns:
            was = before.get(pattern, 0)
            firsts = [places.classes[k][0] for k, _ in pattern]
            if down[firsts].any():
                forced.add(was)
                continue
            room = min(len(places.classes[k]) // gpus for k, gpus in pattern)
            y = self.y[a, t, pattern] = now[pattern] = self.cp.new_int_var(0, room, f"y[{app.id},{t}]")
            total.add(y)
            if drains[firsts].any():
                self.cp.add(y <= was)
                continue
            enter = self._entering[a, t, pattern] = self.cp.new_int_var(0, room, "")
            self.cp.add(enter >= y - was)
            entering.add(enter)
        self.cp.add(total.expression == self.n[a, t])
        if (a, t) in self.enter:
            self.cp.add(entering.expression <= self.enter[a, t])
        if self.terms.swaps_bind(app):
            change = self.n[a, t] - (self.n[a, t - 1] if t else len(app.held_replicas))
            moved = 2 * entering.expression - change - forced.expression
            self.cp.add(app.replica * moved <= (app.swap_cap or 0))
        return now

    def _one_task_a_cell(self) -> None:
        """Rule 1: a GPU serves at most one task in a step."""
        for (pool, k, t), load in self._use.items():
            places = self.terms.places[pool]
            room = int(places.free(t)[places.classes[k]].sum())
            if room == 1 and load.fixed == 0 and sum(load.factors) == len(load.factors) == load.most:
                if len(load.variables) > 1:
                    self.cp.add_at_most_one(load.variables)
            else:
                self._at_most(load, room)

    def fewest_swaps(self) -> None:
        """Change the objective: fewest replicas that enter (hence leave), then fewest that are held."""
        load = Load()
        weight = 1 + sum(self.terms.places[self.problem.apps[a].pool].pool.gpus for a, _ in self.n)
        for enter in self._entering.values():
            load.add(enter, weight)
        for n in self.n.values():
            load.add(n)
        self.cp.clear_objective()
        self.cp.minimize(load.expression)

    def facts(self, value: Callable[[Var], int]) -> Facts:
        """Everything that a solution says."""
        facts = self.counted(value)
        for j, column in facts.chosen.items():
            job = self.problem.jobs[j]
            if job.running:
                facts.lies[j] = self.terms.places[column.pool].pattern(job.running.ids)
                continue
            taken: Counter[int] = Counter()
            for k, variable, factor in self._pieces[j, column]:
                taken[k] += factor * read(value, variable)
            facts.lies[j] = tuple(sorted((k, many) for k, many in taken.items() if many))
        for a, t in self.n:
            if not self.moves_freely(self.problem.apps[a]):
                facts.held[a, t] = Counter() if self.part.apps else self.part.kept.held[a, t]
        for (a, t, pattern), y in self.y.items():
            facts.held[a, t][pattern] = value(y)
        return facts

    def hint(self, facts: Facts) -> None:
        """Start the search from a plan, or from a solution in counts."""
        super().hint(facts)
        if not facts.lies:
            return
        for (j, column, place), z in self.z.items():
            here = facts.chosen.get(j) == column
            self._hint(z, int(here and self._lies_at(self.terms.places[column.pool], facts.lies[j], place)))
        for (j, column), pieces in self._pieces.items():
            lies = dict(facts.lies[j]) if facts.chosen.get(j) == column else {}
            for k, variable, factor in pieces:
                if factor == 1 and not isinstance(variable, int) and not variable.is_boolean:
                    self._hint(variable, lies.get(k, 0))
        for (a, t, pattern), y in self.y.items():
            held = self.problem.apps[a].held_replicas
            places = self.terms.places[self.problem.apps[a].pool]
            before = facts.held[a, t - 1] if t else Counter(places.pattern(one) for one in held)
            now = facts.held[a, t][pattern]
            self._hint(y, now)
            if (a, t, pattern) in self._entering:
                self._hint(self._entering[a, t, pattern], max(0, now - before[pattern]))

    def _lies_at(self, places: Places, lies: Pattern, place: int) -> bool:
        if places.pool.by_node:
            return any(places.class_node[k] == place for k, _ in lies)
        return bool(lies) and lies[0][0] == place
