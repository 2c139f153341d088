for (const button of document.querySelectorAll("button.copy")) {
  const code = button.parentElement.querySelector("pre");
  button.hidden = false;
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
}
