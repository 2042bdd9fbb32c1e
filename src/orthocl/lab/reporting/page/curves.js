// Curves: accuracy through the tasks, within them, and what each task has lost.

const lineOf = (group, points, seeds) => ({
  text: group.label,
  m: group.m,
  colour: group.colour,
  marker: group.marker,
  dash: group.alike,
  points,
  seeds,
});

/** Mean and spread over seeds as points of a line, in percent and within the range that is possible. */
function bandPoints(perSeed, from = 1) {
  const length = Math.min(...perSeed.map(values => values.length));
  const [low, high] = DATA.range.map(value => 100 * value);
  return Array.from({length}, (_, at) => {
    const values = perSeed.map(seed => 100 * seed[at]),
      middle = mean(values),
      sd = spread(values);
    return {x: from + at, y: middle, sd, low: Math.max(low, middle - sd), high: Math.min(high, middle + sd)};
  });
}

/** Per seed, what a curve shows: the mean over tasks so far, or one task from when it was learnt. */
function curveSeeds(group) {
  const task = Number(state.task) - 1,
    tasks = group.tasks;
  if (state.curve === "memorised") {
    const all = group.memorised ? unpack(group.memorised) : [];
    return all.length
      ? [Array.from({length: tasks}, (_, at) => (at < task ? NaN : all[(at * (at + 1)) / 2 + task]))]
      : [];
  }
  return group.done.map((_, seed) =>
    Array.from({length: tasks}, (_, at) => {
      const after = at + 1;
      if (state.curve === "task") return after <= task ? NaN : accuracies(group, after, task)[seed];
      return mean(Array.from({length: after}, (_, one) => accuracies(group, after, one)[seed]));
    }),
  );
}

const MOST_LINES = 48;

/** The groups that charts of lines show: the first ones, in the order of the table. */
const drawn = (wanted = group => group.done.length && group.tasks) =>
  sorted(visible().filter(wanted)).slice(0, MOST_LINES);
const cut = () =>
  visible().length > MOST_LINES
    ? ` Of ${visible().length} settings the first ${MOST_LINES} in the order of the table are drawn: sort or filter to choose others.`
    : "";

function curveLines() {
  return drawn()
    .map(group => {
      const perSeed = curveSeeds(group);
      return perSeed.length
        ? lineOf(
            group,
            bandPoints(perSeed),
            state.seeds && perSeed.map(seed => seed.map((y, at) => ({x: at + 1, y: 100 * y}))),
          )
        : null;
    })
    .filter(line => line && line.points.some(point => Number.isFinite(point.y)));
}

const linesTable = (lines, first, start = 1) => ({
  heads: [
    "method",
    ...Array.from(
      {length: Math.max(0, ...lines.map(line => line.points.length))},
      (_, at) => `${first} ${start + at}`,
    ),
  ],
  rows: lines.map(line => [line.text, ...line.points.map(point => (Number.isFinite(point.y) ? point.y : ""))]),
});

function fitting(values, floor, top) {
  const low = Math.min(...values),
    high = Math.max(...values),
    room = 0.06 * (high - low || 1);
  return [Math.max(floor, low - room), Math.min(top, high + room)];
}

function drawCurves() {
  const tasks = Math.max(1, ...visible().map(group => group.tasks)),
    has = visible().some(group => group.memorised);
  const chosen = {
    sofar: "mean accuracy on the tasks so far",
    task: `accuracy on task ${state.task}`,
    memorised: `accuracy on the remembered samples of task ${state.task}`,
  }[state.curve];
  const pick = (name, text) =>
    h(
      "label",
      {class: "pick"},
      h("input", {
        type: "radio",
        name: "curve",
        checked: state.curve === name,
        onchange: () => change({curve: name}),
      }),
      text,
    );
  const slider = h(
    "label",
    {class: "pick"},
    `task ${Math.min(tasks, state.task)} `,
    h("input", {
      type: "range",
      id: "task",
      min: 1,
      max: tasks,
      value: state.task,
      "aria-label": "task",
      oninput: event => {
        change({task: event.target.value, curve: state.curve === "sofar" ? "task" : state.curve});
        byId("task")?.focus();
      },
    }),
  );
  const controls = h(
    "div",
    {class: "controls", role: "group", "aria-label": "what the curves show"},
    pick("sofar", "tasks so far"),
    pick("task", "one task"),
    has ? pick("memorised", "its remembered samples") : null,
    slider,
    h(
      "label",
      {class: "pick"},
      h("input", {
        type: "checkbox",
        checked: state.seeds !== "",
        onchange: event => change({seeds: event.target.checked ? "1" : ""}),
      }),
      "each seed",
    ),
  );
  const lines = curveLines();
  return [
    card({
      id: "accuracy-curves",
      title: "Accuracy through the tasks",
      controls,
      text: `Test: ${chosen}, after each task. Bands are one standard deviation over seeds. Hover, or focus and use the arrow keys, to read all methods.${cut()}`,
      draw: width =>
        lines.length
          ? lineChart({
              width,
              lines,
              xText: "tasks learnt",
              yText: "accuracy, %",
              label: `${chosen}, ${lines.length} methods`,
              unit: " %",
              yFormat: value => value.toFixed(value % 1 ? 1 : 0),
              y: values => fitting(values, 100 * DATA.range[0], 100 * DATA.range[1]),
            })
          : h("p", {class: "soft"}, "Nothing to draw for this choice."),
      table: () => linesTable(lines, "after task"),
    }),
    ...withinTasks(),
    forgettingCard(),
  ];
}

/** Accuracy of every task at steps within the tasks, for the groups that recorded it. */
function withinTasks() {
  const groups = drawn(group => group.curves).slice(0, 8);
  if (!groups.length) return [];
  const task = Math.min(Number(state.task), groups[0].tasks) - 1;
  const lines = groups.map(group => {
    const values = unpack(group.curves.values);
    return lineOf(
      group,
      group.curves.at.map((_, at) => ({x: at + 1, y: 100 * values[at * group.tasks + task]})),
    );
  });
  return [
    card({
      id: "within-tasks",
      title: `While training: accuracy on task ${task + 1}`,
      text: "At the points within the tasks where it was measured, mean over seeds. The slider above chooses the task.",
      draw: width =>
        lineChart({
          width,
          lines,
          xText: "measurement",
          yText: "accuracy, %",
          label: `accuracy on task ${task + 1} while training`,
          unit: " %",
          yFormat: value => value.toFixed(1),
          y: values => fitting(values, 100 * DATA.range[0], 100 * DATA.range[1]),
        }),
      table: () => linesTable(lines, "point"),
    }),
  ];
}

/** What a task has lost since it was learnt, per seed: its accuracy then minus the final one, in points. */
function lost(group, task) {
  const own = accuracies(group, task + 1, task),
    last = accuracies(group, group.tasks, task);
  return own.map((value, seed) => 100 * (value - last[seed]));
}

function forgettingCard() {
  const lines = drawn(group => group.tasks > 1 && group.done.length).map(group =>
    lineOf(
      group,
      Array.from({length: group.tasks - 1}, (_, task) => {
        const values = lost(group, task),
          middle = mean(values),
          sd = spread(values);
        return {x: task + 1, y: middle, sd, low: middle - sd, high: middle + sd};
      }),
    ),
  );
  if (!lines.length) return null;
  return card({
    id: "forgetting-per-task",
    title: "Forgetting per task",
    text: "Points of accuracy that each task has lost between its own end and the end of the stream; below 0 it has gained.",
    draw: width =>
      lineChart({
        width,
        height: 260,
        lines,
        xText: "task",
        yText: "points lost",
        label: "points of accuracy lost by each task",
        yFormat: value => value.toFixed(value % 1 ? 1 : 0),
        y: values => fitting([...values, 0], -200, 200),
        limit: 0,
        limitText: "",
      }),
    table: () => linesTable(lines, "task"),
  });
}
