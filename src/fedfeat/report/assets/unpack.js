// Data and chart library lie in the page compressed (deflate, then base 85). They are unpacked here and not by the
// browser's own stream, which ends only after the page has loaded: too late for a picture or a print of it.

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]; // of the lengths of code lengths
const FIXED = [[144, 8], [112, 9], [24, 7], [8, 8]].flatMap(([many, length]) => new Array(many).fill(length));
const END = 256; // the symbol that ends a block; those above it are copies of what came before

/** Return the bytes of a text in base 85: four for every five characters. */
function bytesOf(text) {
  const values = new Uint8Array(128);
  [...DIGITS].forEach((digit, i) => {
    values[digit.charCodeAt(0)] = i;
  });
  const bytes = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let i = 0; i < text.length; i += 5) {
    let word = 0;
    for (let j = i; j < i + 5; j++) word = word * 85 + values[text.charCodeAt(j)];
    bytes.setUint32((i / 5) * 4, word);
  }
  return new Uint8Array(bytes.buffer);
}

/** Return a table from the next bits to a symbol and the length of its code, for codes of these lengths. */
function codeTable(lengths) {
  const longest = lengths.reduce((a, b) => Math.max(a, b), 1);
  const table = new Uint16Array(1 << longest);
  for (let length = 1, code = 0; length <= longest; length++, code <<= 1)
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== length) continue;
      let reversed = 0; // a code comes with its highest bit first
      for (let bit = 0; bit < length; bit++) reversed |= ((code >> bit) & 1) << (length - 1 - bit);
      for (let i = reversed; i < table.length; i += 1 << length) table[i] = (symbol << 4) | length;
      code++;
    }
  return table;
}

/** Return where copies begin and how many more bits they read: lengths from 3 on, or distances from 1 on. */
function copyTable(symbols, first, each) {
  const bits = Array.from({ length: symbols }, (_, i) => Math.max(0, Math.floor(i / each) - 1));
  const starts = bits.map(() => 0);
  bits.forEach((_, i) => {
    starts[i] = i ? starts[i - 1] + (1 << bits[i - 1]) : first;
  });
  return { bits, starts };
}

/** Return "size" bytes that were compressed with deflate (RFC 1951). */
function inflate(packed, size) {
  const out = new Uint8Array(size);
  const copies = copyTable(28, 3, 4);
  copies.bits.push(0);
  copies.starts.push(258);
  const distances = copyTable(30, 1, 2);
  let [at, end, held, ready] = [0, 0, 0, 0]; // places in both lists, bits read ahead, and how many
  const need = (many) => {
    for (; ready < many; ready += 8) held |= packed[at++] << ready;
  };
  const take = (many) => {
    need(many);
    const value = held & ((1 << many) - 1);
    held >>>= many;
    ready -= many;
    return value;
  };
  const symbol = (table) => {
    need(15);
    const found = table[held & (table.length - 1)];
    held >>>= found & 15;
    ready -= found & 15;
    return found >> 4;
  };
  const lengthsOf = (table, many) => {
    const lengths = [];
    while (lengths.length < many) {
      const found = symbol(table);
      if (found < 16) lengths.push(found);
      else {
        const again = found === 16 ? last(lengths) : 0;
        const times = found === 16 ? 3 + take(2) : found === 17 ? 3 + take(3) : 11 + take(7);
        for (let i = 0; i < times; i++) lengths.push(again);
      }
    }
    return lengths;
  };
  const tablesOfBlock = () => {
    const [many, far, short] = [257 + take(5), 1 + take(5), 4 + take(4)];
    const lengths = new Array(19).fill(0);
    for (let i = 0; i < short; i++) lengths[ORDER[i]] = take(3);
    const all = lengthsOf(codeTable(lengths), many + far);
    return [codeTable(all.slice(0, many)), codeTable(all.slice(many))];
  };
  for (let final = 0; !final; ) {
    final = take(1);
    const kind = take(2);
    if (kind !== 1 && kind !== 2) throw new Error("text is never stored as it is"); // kind 0 is for noise
    const [words, far] = kind === 2 ? tablesOfBlock() : [codeTable(FIXED), codeTable(new Array(30).fill(5))];
    for (let found = symbol(words); found !== END; found = symbol(words)) {
      if (found < END) {
        out[end++] = found;
        continue;
      }
      const length = copies.starts[found - END - 1] + take(copies.bits[found - END - 1]);
      const place = symbol(far);
      const distance = distances.starts[place] + take(distances.bits[place]);
      for (let i = 0; i < length; i++, end++) out[end] = out[end - distance];
    }
  }
  return out;
}

/** Return the text that an element holds compressed, and let go of the element. */
function unpacked(id) {
  const node = byId(id);
  node.remove();
  return new TextDecoder().decode(inflate(bytesOf(node.textContent), Number(node.dataset.size)));
}

// The policy of the page knows the digest of the library; without it, charts are tables.
if (byId("library").textContent) document.head.append(make("script", {}, unpacked("library")));
