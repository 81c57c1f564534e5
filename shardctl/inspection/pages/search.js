const box = document.querySelector("#search");
const samples = document.querySelectorAll("[data-samples] .one, [data-samples] tbody tr");
const rows = document.querySelectorAll("#samples tbody tr"), command = document.querySelector("#one");
const quoted = word => /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const sample of samples) sample.hidden = !words.every(word => sample.textContent.toLowerCase().includes(word));
  const shown = [...rows].filter(row => !row.hidden).length;
  document.querySelector("#found").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
  if (command) command.textContent = `${command.dataset.begin} ${box.value.trim() ? quoted(box.value.trim()) : "KEY"}`;
});
