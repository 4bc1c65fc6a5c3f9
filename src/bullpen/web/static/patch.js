// Changes a tree of nodes into another one with few changes: what is open, focused or hovered stays as it is.

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined);
const isSame = (one, other) =>
  one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

export function patch(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  patchChildren(old, next);
}

function patchChildren(old, next) {
  const byKey = new Map();
  for (const child of old.childNodes) if (keyOf(child) !== undefined) byKey.set(keyOf(child), child);
  let place = old.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    let found = key === undefined ? place : byKey.get(key);
    if (found && isSame(found, wanted)) {
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      patch(found, wanted);
    } else {
      old.insertBefore(wanted, place);
    }
  }
  while (place) {
    const rest = place.nextSibling;
    place.remove();
    place = rest;
  }
}
