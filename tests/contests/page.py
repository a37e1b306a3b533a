def write(into, runs, peers):
    return "\n".join(map(str, ({k: v for k, v in r.items() if k not in ("versions", "settings")} for r in runs)))
