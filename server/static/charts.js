// Live charts: one column of numbers a window.

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500]; // windows between two ticks
const COLOURS = ["#1f6feb", "#d9534f", "#3c9d5d", "#b07d2b", "#8250df", "#5b6675"];
const cost = (o, before) => 1000 * (o.cost_so_far - (before?.cost_so_far ?? 0));

// What each chart shows: a name, and for each line its label and how to read a window.
// `limit` is a level that must not be crossed.
function plan(task, fields) {
  const least = (field) => Math.min(...task.classes.map((one) => one[field]));
  const level = (label, value) => (Number.isFinite(value) ? [label, value] : undefined);
  return [
    { title: "Traffic and queue", lines: [
      ["arrivals /s", (w) => w.observation.request_arrival_rate],
      ["queue", (w) => w.observation.queue_depth],
      ["running", (w) => w.observation.active_requests],
    ] },
    { title: "Time to first token (ms)", log: true, limit: level("tightest SLO", least("ttft_slo_ms")), lines: [
      ["p50", (w) => Math.max(w.observation.p50_ttft_ms, 1)],
      ["p99", (w) => Math.max(w.observation.p99_ttft_ms, 1)],
    ] },
    { title: "Inter-token latency (ms)", limit: level("tightest SLO", least("tpot_slo_ms")), lines: [
      ["p50", (w) => w.observation.p50_itl_ms],
      ["mean", (w) => w.observation.mean_itl_ms],
    ] },
    { title: "Throughput (tokens/s) and requests inside their SLOs (%)", lines: [
      ["tokens /s", (w) => w.observation.throughput_tps],
      ["inside SLO", (w) => 100 * w.observation.slo_compliance_rate, "%"],
    ] },
    { title: "Memory of one GPU (GiB)", limit: level("limit", task.memory_limit_gb), lines: [
      ["peak", (w) => w.observation.gpu_memory_used_gb],
    ] },
    { title: "Cost (US$ per 1,000 windows) and reward", lines: [
      ["cost", (w, before) => cost(w.observation, before?.observation)],
      ["reward", (w) => w.reward, "reward"],
    ] },
    { title: "Actions", stepped: true, lines: Object.keys(task.knob_ranges).map((knob) => {
      const { title, octaves } = fields[knob];
      const value = octaves ? Math.log2 : Number;
      return [octaves ? `log2 ${title}` : title, (w) => (w.action ? value(w.action[knob]) : null)];
    }) },
  ];
}

export class Charts {
  constructor(place) {
    this.place = place;
    this.charts = [];
    new ResizeObserver(() => this.resize()).observe(place);
  }

  // Empty charts for a task.
  build(task, fields) {
    for (const { chart } of this.charts) chart.destroy();
    this.place.replaceChildren();
    this.charts = plan(task, fields).map((one) => this.#chart(one));
    this.resize();
  }

  // Windows from the reset on; window 0 is the reset, of which a log may show nothing.
  draw(windows) {
    const numbers = windows.map((_, index) => index);
    for (const { one, chart } of this.charts) {
      const columns = one.lines.map(([, read]) =>
        windows.map((window, index) => (window.observation ? read(window, windows[index - 1]) : null)));
      if (one.limit) columns.push(windows.map(() => one.limit[1]));
      chart.setData([numbers, ...columns]);
    }
  }

  resize() {
    for (const { chart, box } of this.charts) {
      chart.setSize({ width: Math.max(box.clientWidth - 18, 200), height: 190 });
    }
  }

  #chart(one) {
    const box = document.createElement("div");
    box.className = "chart";
    const title = document.createElement("h2");
    title.textContent = one.title;
    box.append(title);
    this.place.append(box);
    const paths = one.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined;
    const series = one.lines.map(([label, , scale], index) => ({
      label, paths, scale: scale ?? "y", stroke: COLOURS[index], width: 1.5,
      points: { show: false },
      value: (_, value) => (value == null ? "–" : Number(value.toPrecision(4)).toString()),
    }));
    if (one.limit) {
      series.push({ label: one.limit[0], scale: "y", stroke: COLOURS[5], dash: [6, 4], points: { show: false } });
    }
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 }, ticks: { show: false } };
    const second = one.lines.map(([, , scale]) => scale).find(Boolean);
    const axes = [{ ...axis, incrs: WHOLE }, { ...axis, scale: "y", size: 56 }];
    if (second) axes.push({ ...axis, scale: second, side: 1, grid: { show: false } });
    const chart = new uPlot({
      width: 380, height: 190, series: [{ label: "window" }, ...series], axes,
      scales: { x: { time: false }, y: one.log ? { distr: 3 } : {}, "%": { range: [0, 105] } },
    }, [[], ...series.map(() => [])], box);
    return { one, chart, box };
  }
}
