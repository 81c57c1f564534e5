for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const line = button.previousElementSibling;
    try { await navigator.clipboard.writeText(line.textContent); }
    catch { getSelection().selectAllChildren(line); document.execCommand("copy"); }
    button.textContent = "copied";
  });
}
