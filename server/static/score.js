// Where the mean reward lies between random knobs, the best static setting and the oracle.

// The anchors' scale, as the grader has it; null where the task has no anchors.
export function scoreOf(mean, anchors) {
  if (!anchors) return null;
  const { random, best_static: fixed, oracle } = anchors;
  const score = mean <= fixed
    ? (0.5 * (mean - random)) / (fixed - random)
    : 0.5 + (0.5 * (mean - fixed)) / (oracle - fixed);
  return Math.min(Math.max(score, 0), 1);
}

export function showScore(windows, anchors) {
  const played = windows.slice(1);
  const rewards = played.map((window) => window.reward).filter((reward) => reward !== null);
  const text = (id, value) => (document.getElementById(id).textContent = value);
  const marker = document.getElementById("marker");
  text("window", played.length);
  marker.style.display = "none";
  text("mean", "–");
  text("so_far", "–");
  if (!rewards.length) return;
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  text("mean", mean.toFixed(4));
  const score = scoreOf(mean, anchors);
  if (score === null) return;
  text("so_far", score.toFixed(3));
  marker.style.display = "block";
  marker.style.left = `${100 * score}%`;
}
