/* Material puts every copy button into a <nav> without a name; a reader of screens would list each as a landmark. */
"use strict";
(() => {
  const rename = () =>
    document.querySelectorAll("nav.md-code__nav:not([role])").forEach((nav) => nav.setAttribute("role", "none"));
  new MutationObserver(rename).observe(document.body, { childList: true, subtree: true });
  rename();
})();
