// Where the mean reward lies between random knobs, the best static setting and the oracle.

import { judgeScore } from "./judging.js";

const find = (id) => document.getElementById(id);

// The anchors' scale, as the grader has it; null where the task has no anchors.
export function scoreOf(mean, anchors) {
  if (!anchors || mean === null) return null;
  const { random, best_static: fixed, oracle } = anchors;
  const score = mean <= fixed
    ? (0.5 * (mean - random)) / (fixed - random)
    : 0.5 + (0.5 * (mean - fixed)) / (oracle - fixed);
  return Math.min(Math.max(score, 0), 1);
}

export function meanReward(windows, count) {
  const rewards = windows.slice(1, count).map((window) => window.reward).filter((reward) => reward !== null);
  return rewards.length ? rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length : null;
}

// `others` are overlays: { name, windows }.
export function showScore(windows, task, others) {
  const mean = meanReward(windows);
  const score = scoreOf(mean, task?.mean_reward_anchors);
  find("window").textContent = windows.length - 1 < 0 ? 0 : windows.length - 1;
  find("length").textContent = task?.max_steps ? ` of ${task.max_steps}` : "";
  find("mean").textContent = mean === null ? "–" : mean.toFixed(4);
  find("so_far").textContent = score === null ? "–" : score.toFixed(3);
  find("scorebox").dataset.state = judgeScore(score);
  find("marker").hidden = score === null;
  find("marker").style.left = `${100 * (score ?? 0)}%`;
  const apart = others.map((other) => [other.name, meanReward(other.windows, windows.length)])
    .filter(([, their]) => their !== null && mean !== null)
    .map(([name, their]) => distance(mean - their, name));
  find("standing").textContent = apart.length ? `In the same windows: ${apart.join(", ")}.` : "";
}

function distance(ahead, name) {
  const size = Math.abs(ahead).toFixed(3);
  return Number(size) === 0 ? `level with ${name}` : `${size} a window ${ahead > 0 ? "ahead of" : "behind"} ${name}`;
}
