// The copy button of a session copies its commands, without the prompt and the output.
document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("[data-md-type=copy]");
    const block = button && button.closest(".language-console");
    if (!block) return;
    const commands = [];
    let goesOn = false;
    for (const line of block.querySelector("code").textContent.split("\n")) {
      if (goesOn) commands.push(line.replace(/^> /, ""));
      else if (line.startsWith("$ ")) commands.push(line.slice(2));
      else continue;
      goesOn = line.endsWith("\\");
    }
    event.stopImmediatePropagation();
    event.preventDefault();
    navigator.clipboard.writeText(commands.join("\n") + "\n");
    button.title = "Copied";
  },
  true,
);
