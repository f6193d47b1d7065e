// Owns turning what was dropped or picked into files, each with the path that it is known by.

/** Files of an input. */
export const picked = (files) => [...files].map((file) => ({ file, source: file.webkitRelativePath || file.name }));

/** Files of a drop, those in folders too. */
export async function dropped(transfer) {
  // The list is only whole until the event has been handled: all entries are taken before the first wait.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (entries.length === 0) return picked(transfer.files);
  return (await Promise.all(entries.map(walk))).flat();
}

async function walk(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [{ file, source: entry.fullPath.replace(/^\//, "") }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) break; // it gives a hundred or so at a time
    found.push(...some);
  }
  return (await Promise.all(found.map(walk))).flat();
}
