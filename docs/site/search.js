// The search of the site, in the place of Zensical's own worker (scripts/docs/build_site.py), which wants all words in one section
// and knows no other words for them. A word counts by how rare and how often it is, and more in a heading; a section loses by words
// that it lacks.
// Messages to it: {type: 0, data: {config, items}} and {type: 2, data: {input, page}}. It answers {type: 1}, and {type: 3, data}.
const WORD = /<[^>]*>|&[a-z]+;|[\u4e00-\u9fff]|(?:(?![\u4e00-\u9fff])[\p{L}\p{N}])+/gu;
const ENDINGS = [["ies", "y", 3], ["ing", "", 4], ["ed", "", 4], ["es", "", 3], ["s", "", 3], ["e", "", 3]];
const LESS = 0.8;
const LEAST = 0.05;
let table, sections, usual;

function stem(word) {
  for (const [ending, instead, least] of ENDINGS) {
    const before = word.slice(0, word.length - ending.length);
    if (word.endsWith(ending) && before.length >= least && !word.endsWith("ss")) {
      const doubled = /ing|ed/.test(ending) && /(bb|gg|mm|nn|pp|tt)$/.test(before);
      return doubled ? before.slice(0, -1) : before + instead;
    }
  }
  return word;
}

function words(text) {
  const found = [];
  for (const each of text.toLowerCase().matchAll(WORD))
    if (!/^[<&]/.test(each[0])) found.push({ stem: stem(each[0]), start: each.index, end: each.index + each[0].length });
  return found;
}

const normal = (text) => ` ${words(text).map((each) => each.stem).join(" ")} `;
const times = (part, text) => text.split(part).length - 1;

function count(form, text) {
  const whole = times(` ${form} `, text);
  return whole + (form.length > 2 ? 0.5 * (times(` ${form}`, text) - whole) : 0);
}

function start({ config, items }) {
  table = config.words;
  table.known = Object.entries(table.stand_for).sort((a, b) => b[0].length - a[0].length);
  table.skipped = new Set(normal(table.ignored).split(" "));
  const titles = {};
  sections = items.map((item, id) => {
    const path = item.location.split("#")[0].replace(/\/$/, "");
    const page = path.split("/").pop();
    const isPage = !item.location.includes("#");
    if (isPage) titles[path] = normal(`${page} ${item.title}`);
    const plain = item.title.replace(/<[^>]*>/g, "");
    const weight = table.weights[page] ?? table.weights[path.split("/")[0]] ?? 1;
    const ofHeading = table.weights[item.location.split("#")[1]] ?? 1;
    return { id, item, path, isPage, weight: weight * ofHeading, chinese: page.endsWith(".zh"), name: isPage ? normal(page) : plain.toLowerCase(),
      text: normal(item.text), heading: normal(item.title) };
  });
  for (const each of sections) each.title = titles[each.path] ?? " ";
  usual = sections.reduce((sum, each) => sum + each.text.length, 0) / sections.length;
}

function termsOf(asked) {
  let left = normal(asked);
  const terms = [];
  for (const [known, instead] of table.known)
    if (left.includes(normal(known))) {
      terms.push([normal(known).trim(), ...instead.map((each) => normal(each).trim())]);
      left = left.replaceAll(normal(known), " | ");
    }
  for (const [run] of left.matchAll(/[\u4e00-\u9fff](?: [\u4e00-\u9fff])*|[^\s|]+/gu)) {
    const parts = run.split(" ");
    const pairs = parts.slice(1).map((each, at) => `${parts[at]} ${each}`);
    for (const each of pairs.length ? pairs : [run]) if (!table.skipped.has(each)) terms.push([each]);
  }
  return terms.length ? terms : left.replaceAll("|", "").split(" ").filter(Boolean).map((each) => [each]);
}

function value(term, section) {
  return Math.max(...term.map((form, at) => {
    const often = count(form, section.text);
    const there = often / (often + 0.5 + section.text.length / usual)
      + 2.5 * Math.min(count(form, section.isPage ? section.title : section.heading), 1) + Math.min(count(form, section.title), 1);
    return there * (at ? LESS : 1);
  }));
}

function search(asked) {
  const terms = termsOf(asked);
  const values = sections.map((section) => terms.map((term) => value(term, section)));
  const rarity = terms.map((_, at) => Math.log(1 + sections.length / (1 + values.filter((each) => each[at] > 0).length)));
  const all = rarity.reduce((a, b) => a + b, 0);
  const forms = terms.flat().join(" ").split(" ");
  const exact = asked.trim().toLowerCase();
  const found = [];
  sections.forEach((section, number) => {
    const each = values[number];
    let score = each.reduce((sum, is, at) => sum + is * rarity[at], 0);
    // Chinese pages say the same of an English word as the English ones
    if (!score || (section.chinese && /^[\x00-\x7f]*$/.test(asked))) return;
    const heading = section.heading.split(" ").filter((word) => word && !table.skipped.has(word));
    const asked_for = heading.filter((word) => forms.some((form) => word.startsWith(form))).length;
    score *= (rarity.reduce((sum, weight, at) => sum + (each[at] ? weight : 0), 0) / all) ** 2;
    score *= (1 + asked_for / Math.max(heading.length, 1)) * section.weight * (section.name === (section.isPage ? normal(asked) : exact) ? 2.5 : 1);
    if (section.chinese) score *= 2;
    found.push({ section, score });
  });
  found.sort((a, b) => b.score - a.score);
  const least = LEAST * (found[0]?.score ?? 0);
  return { found: found.filter((each) => each.score >= least), forms };
}

function shown({ section, score }, forms) {
  const matches = ["title", "text"].map((field) => {
    const ranges = words(section.item[field])
      .filter((word) => forms.some((form) => word.stem.startsWith(form)))
      .map(({ start, end }) => ({ start, end, value: end - start }));
    return { id: section.id, field, score, value: { highlight: { ranges } } };
  });
  return { id: section.id, matches };
}

self.onmessage = ({ data: { type, data } }) => {
  if (type === 0) {
    start(data);
    self.postMessage({ type: 1 });
  } else if (type === 2) {
    const { found, forms } = typeof data.input === "string" ? search(data.input) : { found: [], forms: [] };
    const { size = 10, from = 0 } = data.page ?? {};
    const pagination = { total: found.length };
    if (from) pagination.prev = { size, from: from - size };
    if (from + size < found.length) pagination.next = { size, from: from + size };
    const items = found.slice(from, from + size).map((each) => shown(each, forms));
    self.postMessage({ type: 3, data: { items, query: { values: [] }, pagination } });
  }
};
