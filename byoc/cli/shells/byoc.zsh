#compdef byoc
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_byoc() {
    local reply value
    local -a whole whole_shown begun begun_shown
    for reply in "${(@f)$(
        _BYOC_COMPLETE=zsh ${~words[1]} "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null
    )}"; do
        value=${reply%%$'\t'*}
        case $value in
            '') ;;
            *[=:/]) begun+=("$value") begun_shown+=("${reply/$'\t'/  -- }") ;;
            *) whole+=("$value") whole_shown+=("${reply/$'\t'/  -- }") ;;
        esac
    done
    (( $#whole + $#begun )) || { _files; return }
    (( $#whole )) && compadd -l -d whole_shown -a whole
    (( $#begun )) && compadd -l -S '' -d begun_shown -a begun
}
compdef _byoc byoc
