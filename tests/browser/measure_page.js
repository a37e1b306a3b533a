() => {
    // Measures what a reader would see as broken: words on two lines, texts over each other, beside the screen, or pale.
    const found = {beside: document.documentElement.scrollWidth - window.innerWidth, broken: [], cut: [], over: [], pale: []};
    const color = text => (text.match(/[\d.]+/g) || []).map(Number);
    const light = ([red, green, blue]) => [red, green, blue].map(part => part / 255)
        .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const back = color(getComputedStyle(at).backgroundColor);
            if (back.length == 3 || back[3] > 0.5) return back;
        }
        return [255, 255, 255];
    };
    // The drawing of a topology may be wider than a telephone, and scrolls.
    const scrolls = element => element.closest(".drawing") !== null;
    const texts = [];
    for (const element of document.querySelectorAll("body *")) {
        if (!element.checkVisibility({contentVisibilityAuto: true}) || element.closest("title, desc, defs, option, select")) continue;
        const style = getComputedStyle(element);
        if (style.overflowX != "visible" && element.scrollWidth > element.clientWidth + 1 && !scrolls(element))
            found.cut.push(`${element.tagName} ${element.className}: ${element.textContent.trim().slice(0, 60)}`);
        for (const node of element.childNodes) {
            if (node.nodeType != 3 || !node.data.trim()) continue;
            const text = node.data.trim().slice(0, 60), range = document.createRange();
            for (const word of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.broken.push(word[0]);
            }
            range.selectNodeContents(node);
            if (!(element instanceof SVGElement) && /[\p{L}\p{N}]/u.test(text)) {
                const [one, two] = [light(color(style.color)), light(behind(element))].sort((a, b) => b - a);
                if ((one + 0.05) / (two + 0.05) < 4.5) found.pale.push(text);
            }
            if (scrolls(element)) continue;
            for (const box of range.getClientRects()) {
                if (box.right > window.innerWidth + 1 || box.left < -1) found.cut.push(text);
                texts.push([box, text]);
            }
        }
    }
    for (const [place, [one, text]] of texts.entries())
        for (const [two, other] of texts.slice(place + 1)) {
            const width = Math.min(one.right, two.right) - Math.max(one.left, two.left);
            const height = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
            if (width > 2 && height > 4) found.over.push(`${text} | ${other}`);
        }
    return found;
}
