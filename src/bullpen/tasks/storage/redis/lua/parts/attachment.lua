-- Words as the attachment of a notification, or '' if they are too long: a server disconnects subscribers that are
-- sent too much. `rows.words_in` reads it.
local function as_attachment(words, count)
    local written, length = {}, 0
    for i = 1, count do
        local word = words[i] or nil
        written[i] = word and #word .. ':' .. word or '-1:'
        length = length + #written[i]
    end
    return length <= MAX_ATTACHMENT and '\0' .. table.concat(written) or ''
end
