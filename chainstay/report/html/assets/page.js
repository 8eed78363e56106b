"use strict";
// What a page does beside drawing: it says what is under the cursor, sorts the table, and gives
// the charts the colours of the style sheet. Text from outside is only ever set as text.
window.chainstay = (() => {
  const page = { point: () => {}, leave: () => {} };
  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function dress(model) {
    for (const axis of [...model.below, ...model.left]) {
      axis.axis_label_text_color = axis.major_label_text_color = colour("--quiet");
      axis.axis_line_color = axis.orientation === "vertical" ? null : colour("--rule");
    }
    for (const part of model.center) {
      if (part.type === "Grid") part.grid_line_color = colour("--grid");
      if (part.name === "cursor-line") part.line_color = colour("--strong");
    }
    for (const renderer of model.renderers) {
      if (["total", "cursor-bar", "plan"].includes(renderer.name))
        renderer.glyph.line_color = colour("--strong");
      const isSparse = renderer.name === "bars-drawn" && renderer.data_source.data.left.length <= 500;
      if (isSparse) renderer.glyph.line_color = colour("--page");
    }
  }

  // The last position in an ascending array whose value is at most x; -1 if none is.
  function last(values, x, from = 0, to = values.length) {
    let low = from - 1, high = to;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] <= x) low = middle; else high = middle;
    }
    return low;
  }

  function bytes(size, unit) {
    if (unit) return `${size} ${unit}`;
    for (const [power, name] of [[3, "GiB"], [2, "MiB"], [1, "KiB"]]) {
      if (Math.abs(size) >= 1024 ** power) return `${(size / 1024 ** power).toFixed(2)} ${name}`;
    }
    return `${Math.round(size)} bytes`;
  }

  function follow(data, find) {
    const source = find("bars").data, levels = find("levels").data, cursor = find("cursor");
    const charts = [find("memory"), find("schedule")];
    const lines = charts.map((chart) => chart.center.find((part) => part.name === "cursor-line"));
    const element = (id) => document.getElementById(id);
    const starts = source.left, ends = source.right, readout = element("readout");
    const order = [...starts.keys()].sort((i, j) => starts[i] - starts[j] || ends[i] - ends[j]);
    let shown = -1;

    // The bar of a lane at a time; of several, the last one that has begun.
    function barIn(lane, x) {
      const [from, to] = data.lanes[lane].bars;
      const i = last(starts, x, from, to);
      return i >= from && x <= ends[i] ? i : -1;
    }

    function barAt(x, y) {
      const inLink = data.lanes.findIndex((lane) => lane.link && y >= lane.low && y <= lane.high);
      if (inLink >= 0) return barIn(inLink, x);
      for (const [lane, { link }] of data.lanes.entries()) {
        const i = link ? -1 : barIn(lane, x);
        if (i >= 0) return i;
      }
      return -1;
    }

    function levelAt(x) {
      const times = levels.time, i = Math.max(0, last(times, x));
      const next = Math.min(i + 1, times.length - 1);
      const share = times[next] > times[i] ? Math.min(1, (x - times[i]) / (times[next] - times[i])) : 0;
      const edge = (name) => levels[name][i] + share * (levels[name][next] - levels[name][i]);
      const names = Object.keys(levels).filter((name) => name !== "time");
      return data.categories.map(([field]) => {
        const below = names[names.indexOf(field) - 1];
        return Math.round((edge(field) - edge(below)) * data.size);
      });
    }

    function say(i, x) {
      const decimals = Math.max(0, 6 - Math.ceil(Math.log10(data.makespan || 1)));
      const time = (value) => `${Number(value.toFixed(decimals))} ${data.time.unit}`;
      element("op-label").textContent = i < 0 ? "idle" : data.labels[i];
      element("op-description").textContent = i < 0 ? "nothing is computed: what comes next waits for a transfer" : data.descriptions[data.description_of[i]];
      element("op-when").textContent = i < 0 ? `at ${time(x)}`
        : `from ${time(starts[i])} to ${time(ends[i])}, ${time(ends[i] - starts[i])} long`;
      const sizes = levelAt(x);
      const total = document.createElement("b");
      const sum = sizes.reduce((one, other) => one + other, 0);
      total.textContent = `${bytes(sum, data.unit)} in use at ${time(x)}`;
      element("op-memory").replaceChildren(total, ...data.categories.map(([, label, tint], k) => {
        const part = document.createElement("span"), mark = document.createElement("i");
        mark.style.background = tint;
        part.append(mark, `${label} ${bytes(sizes[k], data.unit)}`);
        return part;
      }));
    }

    function show(i, x) {
      readout.classList.add("shows");
      for (const line of lines) {
        line.location = x;
        line.visible = true;
      }
      if (i !== shown) {
        const sides = ["left", "right", "bottom", "top"];
        cursor.data = Object.fromEntries(sides.map((side) => [side, i < 0 ? [] : [source[side][i]]]));
        shown = i;
      }
      say(i, x);
    }

    page.point = (x, y, name) => {
      if (x >= 0 && x <= data.makespan) show(barAt(x, name === "schedule" ? y : -1), x);
    };
    page.leave = () => {
      for (const line of lines) line.visible = false;
    };
    document.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const isElsewhere = event.target.closest(".scroll, pre, summary");
      if (!step || isElsewhere || event.altKey || event.ctrlKey || event.metaKey) return;
      const place = shown < 0 ? (step > 0 ? 0 : order.length - 1) : order.indexOf(shown) + step;
      const i = order[Math.min(Math.max(place, 0), order.length - 1)];
      show(i, (starts[i] + ends[i]) / 2);
      event.preventDefault();
    });
  }

  function sortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      const key = (row) => row.cells[column].dataset.key;
      const isNumber = head.dataset.number === "yes";
      const compare = isNumber ? (one, other) => key(one) - key(other)
        : (one, other) => key(one).localeCompare(key(other), undefined, { numeric: true });
      const rows = [...body.rows].sort((one, other) => (descending ? -1 : 1) * compare(one, other));
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...rows);
    }));
  }

  function start() {
    const bokeh = Bokeh.documents[0];
    const find = (name) => bokeh.get_model_by_name(name);
    const data = JSON.parse(document.getElementById("chainstay-data").textContent);
    const charts = ["memory", "schedule", "frontier"].map(find).filter(Boolean);
    const dressAll = () => charts.forEach(dress);
    dressAll();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dressAll);
    if (data.lanes) follow(data, find);
    document.documentElement.dataset.ready = "yes";
  }

  function startWhenDrawn() {
    const needed = document.querySelectorAll(".chart").length;
    const drawn = Bokeh.documents.length ? Bokeh.documents[0].roots().length : 0;
    if (drawn < needed || Object.keys(Bokeh.index).length === 0 && needed) {
      requestAnimationFrame(startWhenDrawn);
    } else if (needed) start();
    else document.documentElement.dataset.ready = "yes";
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("table.stages").forEach(sortable);
    startWhenDrawn();
  });
  return page;
})();
