// Wide tables scroll sideways; the Tab key must reach them.
addEventListener("load", () => {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => { table.tabIndex = 0; });
});
